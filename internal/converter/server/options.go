package server

import (
	"slices"

	"github.com/detour-collective/dcol/internal/converter/rfc8803"
)

// Kinds of TCP options.
const (
	kindEnd         = 0
	kindNop         = 1
	kindMSS         = 2
	kindWindowScale = 3
	kindMPTCP       = 30
)

// supported are the options that a client may ask for. The kernel sends those that are part of any SYN, such
// as timestamps, as this host is configured.
var supported = &rfc8803.Supported{Kinds: []byte{kindMPTCP}}

// mpCapable stands for the MP_CAPABLE option of a server's SYN+ACK: version 1, HMAC-SHA256 and no key. The
// kernel tells nobody the key, and the client needs only the option's presence.
var mpCapable = []byte{kindMPTCP, 12, 0x01, 0x01, 0, 0, 0, 0, 0, 0, 0, 0}

// checkOptions reads the options that a client wants in the SYN to the server. Of the options that are
// padding, or the business of each end's own stack, none is refused or passed on (section 7).
func checkOptions(b []byte) (mptcp bool, refusal *rfc8803.Error) {
	var refused []byte
	for len(b) > 0 && b[0] != kindEnd {
		kind := b[0]
		if kind == kindNop {
			b = b[1:]
			continue
		}
		if len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
			return false, &rfc8803.Error{Code: rfc8803.MalformedMessage}
		}
		b = b[b[1]:]
		switch kind {
		case kindMPTCP:
			mptcp = true
		case kindMSS, kindWindowScale:
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
