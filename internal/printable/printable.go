// Package printable makes text from others safe to print on a terminal.
package printable

import (
	"strings"
	"unicode"
)

// Text returns s with a space in place of each character that could control a terminal: control
// characters, line breaks and marks that change the direction of writing.
func Text(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}
