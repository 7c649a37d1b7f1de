package topology

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func read(t *testing.T, text string) *Network {
	t.Helper()
	n, err := Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestDiamond(t *testing.T) {
	n := read(t, "# a diamond\ns a\ns b\ns c\na d\nb d 1\nc d 2\n\nd e\n")
	c := n.Calibrate(32, []int{n.Node("s"), n.Node("e")})
	// From s to e, two of three ways are shortest, and likewise from e to s.
	if c.Pairs != 2 || c.Paths[2] != 2 || c.Radix != 2 || c.Hops != 3 || c.Length != 32 || c.Needed != 3 {
		t.Errorf("%+v", c)
	}
	if c.Nodes != 6-1 && c.Links != 7 {
		t.Errorf("%d nodes and %d links", c.Nodes, c.Links)
	}
}

// chain returns diamonds of the given width in a row.
func chain(diamonds, width int) string {
	var b strings.Builder
	for i := range diamonds {
		for j := range width {
			fmt.Fprintf(&b, "n%d m%d.%d\nm%d.%d n%d\n", i, i, j, i, j, i+1)
		}
	}
	return b.String()
}

// TestUncontrollablePairs: with radix 16, 32 bits have 8 positions, so balancing routers 8 hops apart share one.
func TestUncontrollablePairs(t *testing.T) {
	n := read(t, chain(5, 16)) // ten hops
	c := n.Calibrate(32, []int{n.Node("n0"), n.Node("n5")})
	if c.Radix != 16 || c.Length != 8 || c.Hops != 10 || c.Needed != 40 || c.Uncontrolled != 2 {
		t.Errorf("%+v", c)
	}
	if c = n.Calibrate(48, []int{n.Node("n0"), n.Node("n5")}); c.Uncontrolled != 0 || c.Length != 12 {
		t.Errorf("with 48 bits: %+v", c)
	}
	n = read(t, chain(4, 16)) // eight hops: the last balancing router is six hops after the first
	if c = n.Calibrate(32, []int{n.Node("n0"), n.Node("n4")}); c.Uncontrolled != 0 {
		t.Errorf("eight hops: %+v", c)
	}
	if c.MostPaths != 16*16*16*16 {
		t.Errorf("%d paths", c.MostPaths)
	}
}

func TestBadLists(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "a\n", "a b c\n", "a b 0\n", "a b -1\n", "a b NaN\n", "a b Inf\n", "a b 1 2\n"} {
		if _, err := Read(strings.NewReader(text)); !errors.Is(err, ErrFormat) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := Read(strings.NewReader("a a\n")); err == nil {
		t.Error("a link to itself is accepted")
	}
}

func FuzzRead(f *testing.F) {
	f.Add("a b 1\nb c\n")
	f.Add("a b 1e309")
	f.Fuzz(func(_ *testing.T, text string) {
		if n, err := Read(strings.NewReader(text)); err == nil && len(n.Names) < 20 {
			n.Calibrate(32, nil)
		}
	})
}
