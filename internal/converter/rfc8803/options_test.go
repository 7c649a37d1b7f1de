package rfc8803

import (
	"errors"
	"slices"
	"testing"
)

func TestOptionKinds(t *testing.T) {
	for name, c := range map[string]struct {
		b    []byte
		want []byte
		err  error
	}{
		"none":               {nil, nil, nil},
		"padding":            {[]byte{1, 1, 0, 0}, nil, nil},
		"several":            {[]byte{2, 4, 5, 0xb4, 1, 3, 3, 7, 30, 4, 0, 1}, []byte{2, 3, 30}, nil},
		"nothing after end":  {[]byte{4, 2, 0, 30, 9}, []byte{4}, nil},
		"without length":     {[]byte{4, 2, 30}, nil, ErrMalformed},
		"length 1":           {[]byte{30, 1, 0, 0}, nil, ErrMalformed},
		"longer than all":    {[]byte{30, 5, 0, 0}, nil, ErrMalformed},
		"as long as all":     {[]byte{30, 4, 0, 0}, []byte{30}, nil},
		"end in the last":    {[]byte{30, 3, 0, 0}, []byte{30}, nil},
		"twice the same one": {[]byte{4, 2, 4, 2}, []byte{4, 4}, nil},
	} {
		kinds, err := OptionKinds(c.b)
		if !slices.Equal(kinds, c.want) || !errors.Is(err, c.err) {
			t.Errorf("%s: %v, %v, want %v, %v", name, kinds, err, c.want, c.err)
		}
	}
}
