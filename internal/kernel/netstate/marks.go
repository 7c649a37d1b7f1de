package netstate

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
)

// MarkUse is a rule that compares or sets bits of packets' or connections' marks.
type MarkUse = nft.MarkUse

// MarkUses lists the routing rules and nftables rules that use the marks of forwarded TCP packets or of their
// connections. It leaves out nftables tables for which skip returns true, and the rules of SetDelivery
// and SetTunnelsOnly.
func MarkUses(skip func(table string) bool) ([]MarkUse, error) {
	uses, err := routingMarks()
	if err != nil {
		return nil, err
	}
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	found, err := conn.MarkUses(skip)
	return append(uses, found...), errors.Join(err, conn.Close())
}

// routingMarks lists the routing rules that look at packets' marks.
func routingMarks() (uses []MarkUse, err error) {
	for _, family := range []struct {
		number  int
		program string
	}{{unix.AF_INET, "ip"}, {unix.AF_INET6, "ip -6"}} {
		rules, err := netlink.RuleList(family.number)
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
			continue // this kernel lacks the family or routing rules
		}
		if err != nil {
			return nil, fmt.Errorf("list routing rules: %w", err)
		}
		for _, r := range rules {
			if r.Mask == nil || *r.Mask == 0 || r.Protocol == tunnelProtocol {
				continue
			}
			uses = append(uses, MarkUse{
				Rule: fmt.Sprintf("%s rule %d (fwmark %#x/%#x)", family.program, r.Priority, r.Mark, *r.Mask),
				Mask: *r.Mask, Value: r.Mark & *r.Mask,
			})
		}
	}
	return uses, nil
}
