package units

import "testing"

func TestCap(t *testing.T) {
	for text, want := range map[string]Cap{
		"unlimited": {}, "0": {On: true}, "0mbit": {On: true}, "4mbit": {true, 4e6}, "1.5 Mbit": {true, 15e5}, "1bit": {true, 1},
	} {
		var c, again Cap
		if err := c.UnmarshalText([]byte(text)); err != nil || c != want {
			t.Errorf("%q is read as %v: %v", text, c, err)
		}
		if err := again.UnmarshalText([]byte(c.String())); err != nil || again != c {
			t.Errorf("%v is written as %q, and that is read as %v: %v", c, c, again, err)
		}
	}
	for _, text := range []string{"", "none", "-4mbit", "4", "4 apples", "99999999999gbit"} {
		if err := new(Cap).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is a rate", text)
		}
	}
}
