package rfc8803

import "testing"

func TestHasMPCapable(t *testing.T) {
	for _, c := range []struct {
		name    string
		options []byte
		want    bool
	}{
		{"none", nil, false},
		{"MSS", []byte{2, 4, 5, 180}, false},
		{"after others", []byte{2, 4, 5, 180, 1, 1, 30, 12, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0}, true},
		{"version 0", []byte{30, 12, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}, false},
		{"MP_JOIN", []byte{30, 4, 0x10, 0}, false},
		{"after the end", []byte{0, 30, 4, 1, 1}, false},
		{"truncated", []byte{30, 12, 1}, false},
		{"no length", []byte{30}, false},
		{"length 0", []byte{3, 0, 30, 4, 1, 1}, false},
	} {
		if got, _ := HasMPCapable(c.options); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
