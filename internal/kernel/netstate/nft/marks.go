package nft

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// MarkUse is a rule that compares or sets bits of the mark of packets or connections.
type MarkUse struct {
	Rule  string // "rule family table chain handle N"
	Mask  uint32 // bits that it compares or may change
	Value uint32 // the value that it compares them with, or the ones that it sets
	Sets  bool
}

// MarkUses lists the rules that use the marks of forwarded TCP packets or of their connections. It leaves out tables
// for which skip returns true. It finds rules of iptables only if they are implemented by nftables.
func (c *Conn) MarkUses(skip func(table string) bool) ([]MarkUse, error) {
	chains, err := c.get(unix.NFT_MSG_GETCHAIN, netlink.Dump, genmsg(unix.AF_UNSPEC, 0))
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", withFix(err))
	}
	hooks := make(map[string]uint32)
	for _, m := range chains {
		if name, hook, ok := decodeHook(m.Data); ok {
			hooks[name] = hook
		}
	}
	replies, err := c.get(unix.NFT_MSG_GETRULE, netlink.Dump, genmsg(unix.AF_UNSPEC, 0))
	if err != nil {
		return nil, fmt.Errorf("list nftables rules: %w", withFix(err))
	}
	var uses []MarkUse
	for _, m := range replies {
		r, err := decodeRule(m.Data)
		if err != nil {
			return nil, fmt.Errorf("list nftables rules: %w", err)
		}
		if _, known := familyNames[r.family]; !known || skip(r.table) {
			continue
		}
		for _, u := range r.markUses() {
			hook, base := hooks[r.chainName()]
			if base && !concernsForwarded(u, hook) {
				continue
			}
			u.Rule = fmt.Sprintf("rule %s handle %d", r.chainName(), r.handle)
			uses = append(uses, u.MarkUse)
		}
	}
	// Before nft 1.1, a range is two comparisons.
	return slices.Compact(uses), nil
}

// concernsForwarded reports whether a base chain at the hook can affect forwarded packets. The mark of a packet matters
// only before routing, the mark of a connection at all hooks that forwarded packets pass.
func concernsForwarded(u markUse, hook uint32) bool {
	switch hook {
	case unix.NF_INET_PRE_ROUTING:
		return true
	case unix.NF_INET_FORWARD, unix.NF_INET_POST_ROUTING:
		return u.of == connectionMark
	}
	return false
}

// decodeHook returns the hook of a base chain, and its name in the form of chainName.
func decodeHook(message []byte) (name string, hook uint32, ok bool) {
	ad, err := attributesOf(message)
	if err != nil {
		return "", 0, false
	}
	r := rawRule{family: message[0]}
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_CHAIN_TABLE:
			r.table = ad.String()
		case unix.NFTA_CHAIN_NAME:
			r.chain = ad.String()
		case unix.NFTA_CHAIN_HOOK:
			ad.Nested(func(fields *netlink.AttributeDecoder) error {
				fields.ByteOrder = binary.BigEndian
				for fields.Next() {
					if fields.Type() == unix.NFTA_HOOK_HOOKNUM {
						hook, ok = fields.Uint32(), true
					}
				}
				return nil
			})
		}
	}
	return r.chainName(), hook, ok && ad.Err() == nil
}
