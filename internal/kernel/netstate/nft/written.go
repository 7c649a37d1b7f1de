package nft

import (
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// tally is the number of rules in each chain of each table.
type tally map[string]map[string]int

// count describes how one message of a transaction changes a tally.
type count struct {
	table, chain string // without a chain: the whole table
	clear        bool   // remove the rules first
	rules        int    // number of rules added then
}

func (t tally) apply(c count) {
	if c.chain == "" {
		delete(t, c.table)
		return
	}
	if t[c.table] == nil {
		t[c.table] = make(map[string]int)
	}
	if c.clear {
		t[c.table][c.chain] = 0
	}
	t[c.table][c.chain] += c.rules
}

// chainRules is the number of rules in each chain of one table. Chains without rules are missing.
type chainRules map[string]int

// has reports whether each chain has at least as many rules as wanted. Other programs may have added some, such as
// counters.
func (rules chainRules) has(want map[string]int) bool {
	for chain, n := range want {
		if rules[chain] < n {
			return false
		}
	}
	return true
}

// Intact reports whether the table exists and has the rules that this connection wrote or adopted. It does not look at
// the elements of sets; see Whole.
func (c *Conn) Intact(t Table) (bool, error) {
	there, err := c.HasTable(t)
	if err != nil || !there {
		return false, err
	}
	want := c.written[t.Name]
	generation, err := c.generation()
	if err != nil {
		return false, err
	}
	// A dump costs time, and is not needed if the ruleset has not changed since the last one.
	if last, looked := c.intact[t.Name]; looked && last == generation {
		return true, nil
	}
	rules, whole, err := c.rules(t)
	if err != nil {
		return false, err
	}
	switch {
	case !whole: // the next call will tell
		return true, nil
	case !rules.has(want):
		return false, nil
	}
	c.intact[t.Name] = generation
	return true, nil
}

// Adopt makes Intact expect the rules that the table has now, and Whole the elements of the given sets. Another process
// has written them. It reports whether each chain has at least as many rules as least says. If not, it adopts nothing.
func (c *Conn) Adopt(t Table, least map[string]int, sets ...Set) (bool, error) {
	const tries = 5
	for range tries {
		rules, whole, err := c.rules(t)
		switch {
		case err != nil:
			return false, err
		case !whole:
			continue
		case !rules.has(least):
			return false, nil
		}
		if err := c.adoptElements(t, sets); err != nil {
			return false, err
		}
		c.written[t.Name] = rules
		return true, nil
	}
	return false, nil
}

// rules counts a table's rules. whole is false if the ruleset changed in the meantime, so that some may be missing.
func (c *Conn) rules(t Table) (rules chainRules, whole bool, err error) {
	e := &encoder{b: genmsg(unix.NFPROTO_INET, 0)}
	e.string(unix.NFTA_RULE_TABLE, t.Name)
	replies, err := c.get(unix.NFT_MSG_GETRULE, netlink.Dump, e.b)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, false, fmt.Errorf("count the rules of nftables table %s: %w", t.Name, withFix(err))
	}
	rules, whole = make(chainRules), true
	for _, m := range replies {
		whole = whole && m.Header.Flags&netlink.DumpInterrupted == 0
		table, chain, err := decodePlace(m.Data)
		if err != nil {
			return nil, false, fmt.Errorf("count the rules of nftables table %s: %w", t.Name, err)
		}
		if table == t.Name {
			rules[chain]++
		}
	}
	return rules, whole, nil
}

// generation returns the number of the ruleset's present state. Each transaction of any program changes it.
func (c *Conn) generation() (uint32, error) {
	replies, err := c.get(unix.NFT_MSG_GETGEN, 0, genmsg(unix.AF_UNSPEC, 0))
	if err != nil {
		return 0, fmt.Errorf("read the generation of nftables: %w", withFix(err))
	}
	for _, m := range replies {
		ad, err := attributesOf(m.Data)
		if err != nil {
			return 0, fmt.Errorf("read the generation of nftables: %w", err)
		}
		for ad.Next() {
			if ad.Type() == unix.NFTA_GEN_ID {
				return ad.Uint32(), ad.Err()
			}
		}
	}
	return 0, errors.New("read the generation of nftables: the kernel names none")
}

// wrote notes the changes that a successful transaction made.
func (c *Conn) wrote(tx *Tx) {
	for _, change := range tx.counts {
		c.written.apply(change)
	}
	now := time.Now()
	for _, change := range tx.changes {
		c.held.apply(change, now)
	}
}
