package nft

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// Which bits a rule concerns, in each of the ways that nft has to say it.
func TestMarkUses(t *testing.T) {
	const pre, post, forward, in, out = "prerouting priority -300", "postrouting priority 0", "forward priority 0", "input priority 0", "output priority 0"
	for _, c := range []struct {
		hook, rule string
		want       []MarkUse
	}{
		{pre, "meta mark 0x5 drop", []MarkUse{{Mask: wholeMark, Value: 5}}},
		{pre, "meta mark & 0xff00 == 0x1200 drop", []MarkUse{{Mask: 0xff00, Value: 0x1200}}},
		{forward, "ct mark & 0x80000000 != 0 drop", []MarkUse{{Mask: 0x80000000}}},
		{pre, "meta mark set 0x7", []MarkUse{{Mask: wholeMark, Value: 7, Sets: true}}},
		{pre, "meta mark set meta mark & 0xffff00ff", []MarkUse{{Mask: 0xff00, Sets: true}}},
		{pre, "meta mark set meta mark | 0x4000", []MarkUse{{Mask: 0x4000, Value: 0x4000, Sets: true}}},
		{pre, "meta mark set meta mark & 0xffff00ff | 0x1200", []MarkUse{{Mask: 0xff00, Value: 0x1200, Sets: true}}},
		{pre, "meta mark set ct mark", []MarkUse{{Mask: wholeMark, Sets: true}}},
		{pre, "meta mark set ct mark & 0x3f00", []MarkUse{{Mask: wholeMark, Sets: true}}},
		{post, "ct mark set meta mark", []MarkUse{{Mask: wholeMark, Sets: true}}},
		{forward, "ct mark set ct mark ^ 0x2", []MarkUse{{Mask: 0x2, Value: 0x2, Sets: true}}},
		{pre, "meta mark & 0xff == 1 ct mark set ct mark & 0xffffff00 | 3", []MarkUse{{Mask: 0xff, Value: 1}, {Mask: 0xff, Value: 3, Sets: true}}},
		{pre, "tcp dport 80 meta mark set 9", []MarkUse{{Mask: wholeMark, Value: 9, Sets: true}}},
		{pre, "meta l4proto tcp meta mark set 9", []MarkUse{{Mask: wholeMark, Value: 9, Sets: true}}},
		{pre, "meta mark { 5, 6 } drop", []MarkUse{{Mask: wholeMark, Value: wholeMark}}}, // any of a set
		{pre, "meta mark 0x10-0x20 drop", []MarkUse{{Mask: wholeMark, Value: wholeMark}}},
		{pre, "meta mark & 0xff00 vmap { 0x100 : drop }", []MarkUse{{Mask: 0xff00, Value: 0xff00}}},
		{pre, "meta mark set tcp dport map { 80 : 1, 443 : 2 }", []MarkUse{{Mask: wholeMark, Sets: true}}},

		{pre, "meta l4proto udp meta mark set ct mark", nil},
		{pre, "udp dport 53 meta mark set 9", nil},
		{pre, "meta mark set 9 udp dport 53", []MarkUse{{Mask: wholeMark, Value: 9, Sets: true}}}, // of all packets
		{out, "meta mark set 9", nil},
		{in, "ct mark set 9", nil},
		{forward, "meta mark set 9", nil}, // its route is found
		{post, "meta mark 9 accept", nil},
		{pre, "ip saddr 10.0.0.1 tcp dport 80 ct state new counter accept", nil},
		{pre, "ct status dnat accept", nil},
		{pre, "meta iif lo meta length 77 drop", nil},
	} {
		ns := netnstest.New(t)
		conn := open(t, ns)
		ns.Output(t, "nft", "add table inet others; add chain inet others c { type filter hook "+c.hook+"; }; add rule inet others c "+c.rule)
		got, err := conn.MarkUses(func(string) bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range got {
			if !strings.HasPrefix(u.Rule, "rule inet others c handle ") {
				t.Errorf("%s: named %q", c.rule, u.Rule)
			}
		}
		if diff := cmp.Diff(c.want, got, cmpopts.IgnoreFields(MarkUse{}, "Rule"), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s, at %s (-want +got):\n%s", c.rule, c.hook, diff)
		}
	}
}

// A chain that others lead to may concern any packet. Tables that are skipped are ours.
func TestMarkUsesOfTables(t *testing.T) {
	ns := netnstest.New(t)
	conn := open(t, ns)
	ns.Output(t, "nft", `
		add table ip one; add chain ip one jumped; add rule ip one jumped meta mark set 1
		add table ip6 two; add chain ip6 two c { type filter hook prerouting priority 0; }; add rule ip6 two c ct mark 2
		add table inet ours; add chain inet ours c; add rule inet ours c meta mark set 3
		add table bridge other; add chain bridge other c; add rule bridge other c meta mark set 4
	`)
	got, err := conn.MarkUses(func(table string) bool { return table == "ours" })
	if err != nil || len(got) != 2 || !strings.HasPrefix(got[0].Rule, "rule ip one jumped handle ") || !strings.HasPrefix(got[1].Rule, "rule ip6 two c handle ") {
		t.Errorf("got %+v, %v", got, err)
	}
}

// What iptables puts into nftables, as xt_mark.h and xt_connmark.h have it.
func TestMarkUsesOfIptables(t *testing.T) {
	words := func(tail byte, list ...uint32) (b []byte) {
		for _, w := range list {
			b = binary.NativeEndian.AppendUint32(b, w)
		}
		return append(b, tail, 0, 0, 0)
	}
	for _, c := range []struct {
		kind, name string
		revision   uint32
		info       []byte
		want       *MarkUse
	}{
		{"match", "mark", 1, words(0, 0x4000, 0xff00), &MarkUse{Mask: 0xff00, Value: 0x4000}},
		{"match", "connmark", 1, words(1, 0x1, wholeMark), &MarkUse{Mask: wholeMark, Value: 1}},
		{"target", "MARK", 2, words(0, 0x4000, 0x4000), &MarkUse{Mask: 0x4000, Value: 0x4000, Sets: true}},
		{"target", "MARK", 2, words(0, 0x1, wholeMark), &MarkUse{Mask: wholeMark, Value: 1, Sets: true}},
		{"target", "CONNMARK", 1, words(connmarkSet, 0x2, 0xff, wholeMark), &MarkUse{Mask: 0xff, Value: 2, Sets: true}},
		{"target", "CONNMARK", 2, words(connmarkSave, 0, 0x3f00, 0x3f00), &MarkUse{Mask: 0x3f00, Sets: true}},
		{"target", "CONNMARK", 1, words(connmarkRestore, 0, wholeMark, wholeMark), &MarkUse{Mask: wholeMark, Sets: true}},
		{"match", "mark", 1, words(0, 0x4000), nil},
		{"match", "comment", 0, words(0, 1, 2, 3), nil},
		{"target", "MASQUERADE", 0, words(0, 1, 2, 3), nil},
	} {
		r := rawRule{expressions: []rawExpression{{name: c.kind, attributes: map[uint16][]byte{
			unix.NFTA_MATCH_NAME: []byte(c.name + "\x00"),
			unix.NFTA_MATCH_REV:  binary.BigEndian.AppendUint32(nil, c.revision),
			unix.NFTA_MATCH_INFO: c.info,
		}}}}
		uses := r.markUses()
		if c.want == nil && len(uses) > 0 || c.want != nil && (len(uses) != 1 || uses[0].MarkUse != *c.want) {
			t.Errorf("%s %s: %+v, want %+v", c.kind, c.name, uses, c.want)
		}
	}
}

func FuzzMarkUses(f *testing.F) {
	f.Add([]byte{unix.NFPROTO_INET, 0, 0, 0})
	f.Fuzz(func(_ *testing.T, message []byte) {
		if r, err := decodeRule(message); err == nil {
			r.markUses()
		}
		decodeHook(message)
	})
}
