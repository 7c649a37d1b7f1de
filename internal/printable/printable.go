// Package printable makes text that came from others safe for a terminal.
//
// It imports nothing of ours; whoever prints what another host or a file said may import it.
package printable

import (
	"strings"
	"unicode"
)

// Text is s with a space for each character that could steer a terminal: control characters, line breaks and
// the marks that change the direction of writing.
func Text(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}
