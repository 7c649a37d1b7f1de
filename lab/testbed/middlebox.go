package testbed

import (
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
)

// Middlebox selects how a host treats the experimental TCP options (kinds 253 and 254, RFC 4727) of SYNs that
// it forwards. Some firewalls remove them or drop the SYN.
type Middlebox string

// The kinds of middlebox.
const (
	NoMiddlebox  Middlebox = ""
	StripOptions Middlebox = "strip-options" // overwrites the options with padding
	DropOptions  Middlebox = "drop-options"  // drops SYNs that have them
)

// Middleboxes returns all there are.
func Middleboxes() []Middlebox { return []Middlebox{StripOptions, DropOptions} }

func (m Middlebox) validate() error {
	if m == NoMiddlebox {
		return nil
	}
	var known []string
	for _, k := range Middleboxes() {
		if m == k {
			return nil
		}
		known = append(known, string(k))
	}
	return fmt.Errorf("middlebox %q is unknown: use %s, or none", m, strings.Join(known, " or "))
}

var middleboxTable = nft.Table{Name: "middlebox"}

// SetMiddlebox makes the host a middlebox, another one, or none. It must be a
// host that forwards.
func (h *Host) SetMiddlebox(m Middlebox) error {
	if err := m.validate(); err != nil {
		return fmt.Errorf("host %s: %w", h.Name(), err)
	}
	if m != NoMiddlebox && !h.plan.Forward {
		return fmt.Errorf("host %s: %w", h.Name(), errNoForward)
	}
	err := h.commit(middleboxTable, nil, m.chains())
	if err != nil {
		return fmt.Errorf("host %s: %w", h.Name(), err)
	}
	return nil
}

// commit replaces a table of the host's; no chains, no table.
func (h *Host) commit(t nft.Table, sets []nft.Set, chains []nft.Chain) error {
	return h.Do(func() error {
		c, err := nft.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Commit("write nftables table "+t.Name, func(tx *nft.Tx) {
			tx.DeleteTable(t)
			if len(chains) > 0 {
				tx.AddTable(t)
				for _, set := range sets {
					tx.AddSet(t, set)
				}
				tx.AddChains(t, chains)
			}
		})
	})
}

// A SYN has at most this many options of one kind: 40 bytes of two each.
const mostOptions = 20

const (
	kindRFC3692a = 253 // "RFC3692-style Experiment 1"
	kindRFC3692b = 254

	tcpFlagsAt = 13 // in the TCP header (RFC 9293, 3.1)
	tcpSYN     = 0x02
)

// chains returns the middlebox's rules; what they are in nft's words is in
// testdata.
func (m Middlebox) chains() []nft.Chain {
	forward := nft.Chain{Name: "forward", Hook: &nft.Hook{Type: "filter", Number: unix.NF_INET_FORWARD, Priority: -150}} // mangle
	kinds := []byte{kindRFC3692a, kindRFC3692b}
	switch m {
	case StripOptions:
		clean := nft.Chain{Name: "clean"}
		for _, kind := range kinds {
			// The kernel's statement overwrites the first one only.
			for range mostOptions {
				clean.Rules = append(clean.Rules, []expr.Any{&nft.ResetTCPOption{Kind: kind}})
			}
			forward.Rules = append(forward.Rules, withOption(kind, &expr.Verdict{Kind: expr.VerdictGoto, Chain: clean.Name}))
		}
		return []nft.Chain{clean, forward}
	case DropOptions:
		for _, kind := range kinds {
			forward.Rules = append(forward.Rules, withOption(kind, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}))
		}
		return []nft.Chain{forward}
	}
	return nil
}

// withOption does something to SYNs, those that answer included, that have an
// option of the kind.
func withOption(kind byte, do ...expr.Any) []expr.Any {
	rule := []expr.Any{
		meta(expr.MetaKeyL4PROTO), equal([]byte{unix.IPPROTO_TCP}),
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: tcpFlagsAt, Len: 1},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{tcpSYN}, Xor: []byte{0}},
		equal([]byte{tcpSYN}),
		&expr.Exthdr{DestRegister: reg, Type: kind, Len: 1, Flags: unix.NFT_EXTHDR_F_PRESENT, Op: expr.ExthdrOpTcpopt},
		equal([]byte{1}),
	}
	return append(rule, do...)
}

// reg is the register that every comparison is made in.
const reg = unix.NFT_REG_1

func meta(key expr.MetaKey) expr.Any { return &expr.Meta{Key: key, Register: reg} }

func equal(data []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: data}
}
