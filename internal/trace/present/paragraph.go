package present

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// columns is the width of a terminal for which text is written.
const columns = 80

// paragraph writes a text behind a beginning, in lines that fit a terminal if words do. The text stays in its column.
func paragraph(w io.Writer, beginning, text string) {
	indent := utf8.RuneCountInString(beginning)
	line, used, first := beginning, indent, true
	for word := range strings.FieldsSeq(text) {
		size := utf8.RuneCountInString(word)
		if !first && used+1+size > columns {
			fmt.Fprintln(w, line)
			line, used, first = strings.Repeat(" ", indent), indent, true
		}
		if !first {
			line, used = line+" ", used+1
		}
		line, used, first = line+word, used+size, false
	}
	fmt.Fprintln(w, strings.TrimRight(line, " "))
}
