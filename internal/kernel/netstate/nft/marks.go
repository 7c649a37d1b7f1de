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
	Mask  uint32 // the bits that it compares or may change
	Value uint32 // what it compares them with, or the ones among those that it sets
	Sets  bool
}

// MarkUses lists the rules that concern the marks of TCP packets that are forwarded, or of their
// connections. skip chooses tables that are left out. Rules of iptables are found if it is the one
// that works by nftables.
func (c *Conn) MarkUses(skip func(table string) bool) ([]MarkUse, error) {
	chains, err := c.get(unix.NFT_MSG_GETCHAIN, netlink.Dump, genmsg(unix.AF_UNSPEC, 0))
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", mend(err))
	}
	hooks := make(map[string]uint32)
	for _, m := range chains {
		if name, hook, ok := decodeHook(m.Data); ok {
			hooks[name] = hook
		}
	}
	replies, err := c.get(unix.NFT_MSG_GETRULE, netlink.Dump, genmsg(unix.AF_UNSPEC, 0))
	if err != nil {
		return nil, fmt.Errorf("list nftables rules: %w", mend(err))
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

// concernsForwarded reports whether a chain at the hook sees forwarded packets at a time when it
// matters: the marks of packets decide about their route and are looked at before that.
func concernsForwarded(u markUse, hook uint32) bool {
	switch hook {
	case unix.NF_INET_PRE_ROUTING:
		return true
	case unix.NF_INET_FORWARD, unix.NF_INET_POST_ROUTING:
		return u.of == connectionMark
	}
	return false
}

// decodeHook reads a base chain's name, as chainName gives it, and its hook.
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
