_goblin() {
    local IFS=$'\013' rest=$COMP_LINE words=() count=0 index word kept answer
    for ((index = 0; index <= COMP_CWORD; index++)); do
        word=${COMP_WORDS[index]}
        if ((index > 0)) && [[ $rest != [[:space:]]* ]]; then
            words[count - 1]+=$word
        else
            rest=${rest#"${rest%%[![:space:]]*}"}
            words[count++]=$word
        fi
        rest=${rest#"$word"}
    done
    word=${words[count - 1]}
    kept=${word%"${word##*[:=]}"}
    COMPREPLY=()
    for answer in $(_CLAP_IFS="$IFS" _CLAP_COMPLETE_INDEX=$((count - 1)) VARIABLE=bash goblin -- "${words[@]}" 2>/dev/null); do
        if [[ $word == -* || $answer != -* ]]; then
            printf -v answer '%q' "${answer#"$kept"}"
            COMPREPLY+=("$answer")
        fi
    done
    if [[ ${#COMPREPLY[@]} -eq 1 && $COMPREPLY == *[=/:] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -F _goblin goblin
