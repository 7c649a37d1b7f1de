package nft

import (
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// ResetTCPOption overwrites every TCP option of a kind with padding (nft: reset tcp option; Linux 5.18). The
// library's Exthdr cannot express this.
type ResetTCPOption struct {
	expr.Any // nil: makes the type one of the library's expressions
	Kind     byte
}

const exthdrOpTCPOption = 1 // NFT_EXTHDR_OP_TCPOPT

func marshal(x expr.Any) ([]byte, error) {
	reset, ok := x.(*ResetTCPOption)
	if !ok {
		b, err := expr.Marshal(unix.NFPROTO_INET, x)
		if err != nil {
			return nil, fmt.Errorf("expression %T: %w", x, err)
		}
		return b, nil
	}
	// This operation is the one without a register and without an offset in the option.
	e := &encoder{}
	e.string(unix.NFTA_EXPR_NAME, "exthdr")
	e.nested(unix.NFTA_EXPR_DATA, func() {
		e.bytes(unix.NFTA_EXTHDR_TYPE, []byte{reset.Kind})
		e.u32(unix.NFTA_EXTHDR_OP, exthdrOpTCPOption)
	})
	return e.b, nil
}
