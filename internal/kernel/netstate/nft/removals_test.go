package nft

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// patience is the time for which a test waits for something that happens at once on an idle machine.
const patience = 30 * time.Second

func (k *Kept) awaitRemoval(t *testing.T) {
	t.Helper()
	select {
	case <-k.Removed():
	case <-time.After(patience):
		t.Fatal("a removal is not reported")
	}
}

// keptSet and keptPort are in the table of keepRules.
var keptSet = Set{Name: "kept", Key: []Type{IPv4Addr}, Interval: true}

const keptPort = 7

func testElement(port byte, life time.Duration) Element {
	return Element{Key: []byte{192, 0, 2, 7, 0, port, 0, 0}, Data: []byte{1, 0, 0, 0}, Timeout: life}
}

// keepRules keeps a table with rules and sets until the end of the test.
func keepRules(t *testing.T, ns *netnstest.NS) *Kept {
	t.Helper()
	accept := []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept}}
	var k *Kept
	ns.Must(t, func() (err error) {
		k, err = Keep(testTable, func(tx *Tx) {
			tx.AddSet(testTable, testSet)
			tx.AddSet(testTable, keptSet)
			tx.AddElements(testTable, keptSet, []Element{{Key: []byte{10, 0, 0, 0}, Last: []byte{10, 255, 255, 255}}, {Key: []byte{192, 0, 2, 1}, Last: []byte{192, 0, 2, 1}}})
			tx.AddElements(testTable, testSet, []Element{testElement(keptPort, time.Hour)})
			tx.AddChains(testTable, []Chain{
				{Name: "input", Hook: &Hook{Type: "filter", Number: unix.NF_INET_LOCAL_IN}, Rules: [][]expr.Any{accept, accept, accept}},
				{Name: "aside", Rules: [][]expr.Any{accept}},
				{Name: "empty"},
			})
		})
		return err
	})
	t.Cleanup(func() {
		_ = k.Close()
	})
	return k
}

// Whatever another program removes of a table is reported, and found.
func TestRemovals(t *testing.T) {
	for name, command := range map[string]string{
		"flush ruleset":  "flush ruleset",
		"delete table":   "delete table inet t",
		"flush table":    "flush table inet t",
		"flush chain":    "flush chain inet t aside",
		"delete chain":   "flush chain inet t aside; delete chain inet t aside",
		"delete rule":    "delete rule inet t input handle HANDLE",
		"empty table":    "delete table inet t; add table inet t",
		"flush set":      "flush set inet t kept",
		"delete element": "delete element inet t kept { 192.0.2.1 }",
		"flush map":      "flush map inet t s",
		"reload":         "flush ruleset; add table inet t; add chain inet t input { type filter hook input priority 0; }",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := netnstest.New(t)
			k := keepRules(t, ns)
			handle := ns.Output(t, "sh", "-c", "nft -a list chain inet t input | grep -o 'handle [0-9]*' | tail -n 1 | cut -d ' ' -f 2")
			ns.Output(t, "nft", strings.Replace(command, "HANDLE", strings.TrimSpace(handle), 1))
			k.awaitRemoval(t)
			if restored, err := k.Check(); err != nil || !restored {
				t.Errorf("restored %v, %v", restored, err)
			}
			if restored, err := k.Check(); err != nil || restored {
				t.Errorf("restored %v once more, %v", restored, err)
			}
		})
	}
}

// What others do elsewhere or add is not reported, nor what the owner does. The report of the removal that follows shows
// that all of it was seen.
func TestNoRemovals(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	k := keepRules(t, ns)
	ns.Output(t, "nft", "add table inet t2; add chain inet t2 input; add rule inet t2 input counter; flush table inet t2; delete table inet t2")
	ns.Output(t, "nft", "add table ip t; add chain ip t input; add rule ip t input counter; delete table ip t")
	ns.Output(t, "nft", "add rule inet t input counter; add element inet t kept { 198.51.100.1 }")
	if intact, err := k.Intact(); err != nil || !intact {
		t.Errorf("nothing was removed: %v, %v", intact, err)
	}
	if err := k.Install(); err != nil { // which removes the table first
		t.Fatal(err)
	}
	ns.Output(t, "nft", "flush", "chain", "inet", "t", "aside")
	k.awaitRemoval(t)
	if _ = k.removals.Close(); k.removals.pace.gap != firstGap {
		t.Errorf("there were several reports: the next would wait for %v", k.removals.pace.gap)
	}
}

// A change by the owner is what the table is compared with from then on.
func TestIntactAfterChange(t *testing.T) {
	ns := netnstest.New(t)
	k := keepRules(t, ns)
	intact := func(when string, want bool) {
		t.Helper()
		if is, err := k.Intact(); err != nil || is != want {
			t.Errorf("%s: intact %v, want %v (%v)", when, is, want, err)
		}
	}
	rules := func(n int) Chain {
		c := Chain{Name: "aside"}
		for range n {
			c.Rules = append(c.Rules, []expr.Any{&expr.Counter{}})
		}
		return c
	}
	for _, n := range []int{0, 3, 2} {
		if err := k.Commit("change a chain", func(tx *Tx) { tx.ReplaceRules(testTable, rules(n)) }); err != nil {
			t.Fatal(err)
		}
		intact(fmt.Sprintf("%d rules", n), true)
	}
	err := k.Commit("change what is not there", func(tx *Tx) { tx.ReplaceRules(testTable, Chain{Name: "none", Rules: rules(1).Rules}) })
	if err == nil {
		t.Fatal("a chain that does not exist was changed")
	}
	intact("after a change that failed", true)
	ns.Output(t, "nft", "flush chain inet t aside; add rule inet t aside counter")
	intact("one of two rules", false)
	ns.Output(t, "nft", "add rule inet t aside counter")
	intact("as many rules as before", true)
}

// A connection that did not write a table expects what it finds, unless it lacks something.
func TestAdopt(t *testing.T) {
	ns := netnstest.New(t)
	keepRules(t, ns)
	c := open(t, ns)
	for _, least := range []map[string]int{{"input": 4}, {"input": 3, "empty": 1}, {"missing": 1}} {
		if ok, err := c.Adopt(testTable, least); err != nil || ok {
			t.Errorf("%v: adopted %v, %v", least, ok, err)
		}
	}
	if ok, err := c.Adopt(testTable, map[string]int{"input": 2, "empty": 0}); err != nil || !ok {
		t.Errorf("adopted %v, %v", ok, err)
	}
	if intact, err := c.Intact(testTable); err != nil || !intact {
		t.Errorf("intact %v, %v", intact, err)
	}
	ns.Output(t, "nft", "flush", "chain", "inet", "t", "aside")
	if intact, err := c.Intact(testTable); err != nil || intact {
		t.Errorf("flushed: intact %v, %v", intact, err)
	}
}

// A program that removes a table again and again is reported at once, then ever more rarely, and at once again after
// a while without removals.
func TestPace(t *testing.T) {
	var p pace
	start := time.Unix(1000, 0)
	if due := p.due(); due.After(start) {
		t.Errorf("the first report is due %v", due)
	}
	now, reports := start, 0
	for ; now.Before(start.Add(time.Minute)); now = now.Add(time.Millisecond) { // a removal each
		if !now.Before(p.due()) {
			p.report(now)
			reports++
		}
	}
	if reports > 20 {
		t.Errorf("%d reports in a minute", reports)
	}
	if wait := p.due().Sub(now); wait > mostGap {
		t.Errorf("the next report waits for %v", wait)
	}
	now = p.due().Add(calm)
	p.report(now)
	if gap := p.due().Sub(now); gap != firstGap {
		t.Errorf("after a calm, the second report waits for %v", gap)
	}
}

// Reports are coalesced: one that fights for a table gets no more of them than pace allows.
func TestRemovalsAreCoalesced(t *testing.T) {
	ns := netnstest.New(t)
	k := keepRules(t, ns)
	began, reports := time.Now(), 0
	const removals = 50
	for range removals {
		ns.Output(t, "nft", "flush chain inet t aside; add rule inet t aside counter")
		select {
		case <-k.Removed():
			reports++
		default:
		}
	}
	var p pace
	most := 1 // as many as pace allows in the time that this took
	for now := began; now.Before(time.Now()); now = p.due() {
		p.report(now)
		most++
	}
	if reports > most {
		t.Errorf("%d reports of %d removals in %v, at most %d expected", reports, removals, time.Since(began), most)
	}
	if reports == 0 {
		k.awaitRemoval(t)
	}
}

// Elements that the owner deletes, or whose lives end, are not missed. Others are, after a change and after an
// adoption, too.
func TestWhole(t *testing.T) {
	ns := netnstest.New(t)
	k := keepRules(t, ns)
	whole := func(c *Conn, when string, want bool) {
		t.Helper()
		if is, err := c.Whole(testTable); err != nil || is != want {
			t.Errorf("%s: whole %v, want %v (%v)", when, is, want, err)
		}
	}
	change := func(when string, f func(tx *Tx)) {
		t.Helper()
		if err := k.Commit(when, f); err != nil {
			t.Fatal(err)
		}
		whole(k.conn, when, true)
	}
	whole(k.conn, "as written", true)
	change("add", func(tx *Tx) {
		tx.AddElements(testTable, testSet, []Element{testElement(1, time.Hour), testElement(2, time.Hour), testElement(3, time.Millisecond)})
	})
	change("delete", func(tx *Tx) { tx.DeleteElements(testTable, testSet, []Element{testElement(1, 0)}) })
	change("replace", func(tx *Tx) {
		tx.FlushSet(testTable, keptSet)
		tx.AddElements(testTable, keptSet, []Element{{Key: []byte{10, 1, 0, 0}, Last: []byte{10, 1, 0, 255}}})
	})
	adopted := open(t, ns)
	if ok, err := adopted.Adopt(testTable, map[string]int{"input": 3}, testSet, keptSet); err != nil || !ok {
		t.Fatalf("adopted %v, %v", ok, err)
	}
	whole(adopted, "adopted", true)
	ns.Output(t, "nft", "delete element inet t s { 192.0.2.7 . 2 }")
	whole(k.conn, "one is missing", false)
	whole(adopted, "one that was adopted is missing", false)
	change("add it again", func(tx *Tx) { tx.AddElements(testTable, testSet, []Element{testElement(2, time.Hour)}) })
	ns.Output(t, "nft", "delete set inet t kept")
	whole(k.conn, "a set is missing", false)
}
