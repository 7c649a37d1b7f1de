package rules

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables/expr"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// markChain is a chain that marks a connection with a member and a kind of detour. There is one for each combination, because
// before Linux 6.13 a rule can change some bits of a mark only if it contains constant values. Maps lead to these chains.
type markChain struct {
	member MemberID
	kind   wire.Kind
}

const markChainPrefix = "member_"

func (c markChain) name() string {
	return fmt.Sprintf("%s%d_%s", markChainPrefix, c.member, strings.ReplaceAll(c.kind.String(), "-", ""))
}

// parseMarkChain is the inverse of name.
func parseMarkChain(name string) (c markChain, ok bool) {
	id, _, _ := strings.Cut(strings.TrimPrefix(name, markChainPrefix), "_")
	n, err := strconv.ParseUint(id, 10, idBits)
	if err != nil || n == 0 {
		return markChain{}, false
	}
	for _, kind := range []wire.Kind{wire.Mapped, wire.InBand, wire.WireGuard, wire.OpenVPN, wire.Converter} {
		if c = (markChain{MemberID(n), kind}); c.name() == name {
			return c, true
		}
	}
	return markChain{}, false
}

func (c markChain) chain(m Marks) chain {
	rules := []rule{setMark(m, m.Mark(c.member, c.kind))}
	if c.kind == wire.Converter {
		rules = append([]rule{acceptInvalid()}, rules...)
	}
	return chain{name: c.name(), rules: rules}
}

// markChains returns the chains to which mappings and admissions lead, by name.
func markChains(mappings []Mapping, admissions []Admission) []markChain {
	found := make(map[markChain]bool)
	for _, m := range mappings {
		found[markChain{m.Member, wire.Mapped}] = true
	}
	for _, a := range admissions {
		found[markChain{a.Member, a.Kind}] = true
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b markChain) int { return strings.Compare(a.name(), b.name()) })
}

// addMarkChains adds the chains that the table lacks, as far as known, and returns them. An existing one gets the same rule
// again.
func (t *Table) addMarkChains(tx *nft.Tx, mappings []Mapping, admissions []Admission) (added []markChain) {
	for _, c := range markChains(mappings, admissions) {
		if t.marking[c] {
			continue
		}
		added = append(added, c)
		whole := c.chain(t.schema.options.Marks).nft()
		tx.AddChains(table, []nft.Chain{{Name: whole.Name, Rules: [][]expr.Any{}}})
		tx.ReplaceRules(table, whole)
	}
	return added
}
