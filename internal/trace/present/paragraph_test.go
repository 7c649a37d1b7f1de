package present

import (
	"strings"
	"testing"
)

func TestParagraph(t *testing.T) {
	word := strings.Repeat("x", 30)
	for _, c := range []struct{ beginning, text, want string }{
		{"Note: ", "short.", "Note: short.\n"},
		{"  3  ", "", "  3\n"},
		{"", "", "\n"},
		{"  - ", word + " " + word + " " + word, "  - " + word + " " + word + "\n    " + word + "\n"},
		{strings.Repeat(" ", 19), word + " " + word, strings.Repeat(" ", 19) + word + " " + word + "\n"}, // 80 columns
		{strings.Repeat(" ", 20), word + " " + word, strings.Repeat(" ", 20) + word + "\n" + strings.Repeat(" ", 20) + word + "\n"},
		{"à", "b " + strings.Repeat("é", 77), "àb " + strings.Repeat("é", 77) + "\n"},
		{"- ", strings.Repeat("y", 90) + " z", "- " + strings.Repeat("y", 90) + "\n  z\n"}, // a long word is not broken
	} {
		var got strings.Builder
		if paragraph(&got, c.beginning, c.text); got.String() != c.want {
			t.Errorf("%q, %q:\n%s, want\n%s", c.beginning, c.text, got.String(), c.want)
		}
	}
}
