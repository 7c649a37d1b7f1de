package rfc8803

import "fmt"

// Kinds of TCP options that matter to converters (section 7).
const (
	KindEnd           = 0
	KindNop           = 1
	KindMSS           = 2
	KindWindowScale   = 3
	KindSACKPermitted = 4
	KindSACK          = 5
	KindTimestamps    = 8
	KindMPTCP         = 30
)

// OptionKinds returns the kinds of the TCP options in a Connect or Extended TCP Header TLV, without padding.
func OptionKinds(b []byte) (kinds []byte, err error) {
	err = eachOption(b, func(option []byte) { kinds = append(kinds, option[0]) })
	if err != nil {
		return nil, err
	}
	return kinds, nil
}

// HasMPCapable reports whether MP_CAPABLE of version 1 is among TCP options (RFC 8684, section 3.1), so that the server speaks
// MPTCP as Linux does. After an error, it reports that for the options before the malformed one.
func HasMPCapable(b []byte) (has bool, err error) {
	const mpCapableV1 = 0x01 // subtype 0
	err = eachOption(b, func(option []byte) {
		has = has || option[0] == KindMPTCP && len(option) > 2 && option[2] == mpCapableV1
	})
	return has, err
}

// eachOption calls f with each option except padding.
func eachOption(b []byte, f func(option []byte)) error {
	for len(b) > 0 && b[0] != KindEnd {
		if b[0] == KindNop {
			b = b[1:]
			continue
		}
		if len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
			return fmt.Errorf("%w: the length of a TCP option of kind %d", ErrMalformed, b[0])
		}
		f(b[:b[1]])
		b = b[b[1]:]
	}
	return nil
}
