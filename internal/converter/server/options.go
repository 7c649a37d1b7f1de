package server

import (
	"slices"

	"github.com/detour-collective/dcol/internal/converter/rfc8803"
)

// supported lists the options that have an effect if a client asks for them.
var supported = &rfc8803.Supported{Kinds: []byte{rfc8803.KindMPTCP}}

// mpCapable stands for the MP_CAPABLE option of a server's SYN+ACK: version 1, HMAC-SHA256 and no key. The kernel does
// not show the key, and the client only needs to see the option.
var mpCapable = []byte{rfc8803.KindMPTCP, 12, 0x01, 0x01, 0, 0, 0, 0, 0, 0, 0, 0}

// checkOptions reads the options that a client wants in the SYN to the server. It ignores options that Linux sends in
// every SYN with its own values, and SACK, which no SYN has (section 7).
func checkOptions(b []byte) (mptcp bool, refusal *rfc8803.Error) {
	kinds, err := rfc8803.OptionKinds(b)
	if err != nil {
		return false, &rfc8803.Error{Code: rfc8803.MalformedMessage}
	}
	var refused []byte
	for _, kind := range kinds {
		switch kind {
		case rfc8803.KindMPTCP:
			mptcp = true
		case rfc8803.KindMSS, rfc8803.KindWindowScale, rfc8803.KindSACKPermitted, rfc8803.KindSACK, rfc8803.KindTimestamps:
		default:
			if !slices.Contains(refused, kind) {
				refused = append(refused, kind)
			}
		}
	}
	if len(refused) > 0 {
		return false, &rfc8803.Error{Code: rfc8803.UnsupportedTCPOption, Value: refused}
	}
	return mptcp, nil
}
