package printable

import "testing"

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"Zoë's waypoint: 日本": "Zoë's waypoint: 日本",
		"a\nb\tc\r":          "a b c ",
		"\x1b[2Jgone":        " [2Jgone",
		"right\u202eto left": "right to left",
		"half\xffcharacter":  "half\ufffdcharacter",
	} {
		if got := Text(in); got != want {
			t.Errorf("%q: %q, not %q", in, got, want)
		}
	}
}
