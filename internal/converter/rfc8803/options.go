package rfc8803

import "fmt"

// Kinds of TCP options that matter to converters (section 7).
const (
	KindEnd           = 0
	KindNop           = 1
	KindMSS           = 2
	KindWindowScale   = 3
	KindSACKPermitted = 4
	KindTimestamps    = 8
	KindMPTCP         = 30
)

// OptionKinds returns the kinds of TCP options, as they are in a Connect or Extended TCP Header TLV, without
// padding.
func OptionKinds(b []byte) (kinds []byte, err error) {
	for len(b) > 0 && b[0] != KindEnd {
		if b[0] == KindNop {
			b = b[1:]
			continue
		}
		if len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
			return nil, fmt.Errorf("%w: the length of a TCP option of kind %d", ErrMalformed, b[0])
		}
		kinds = append(kinds, b[0])
		b = b[b[1]:]
	}
	return kinds, nil
}
