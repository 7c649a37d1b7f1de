package enrol

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestPunch(t *testing.T) {
	want := Punch{With: "bob", ID: PunchID{1, 11: 255}, At: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.9:45672")}}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Punch
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" || got.Check() != nil {
		t.Errorf("%v %s", got.Check(), diff)
	}
	for _, id := range []string{"", "AQ==", strings.Repeat("A", 32), "????????????????"} {
		if err := json.Unmarshal([]byte(`{"id":"`+id+`"}`), &got); err == nil {
			t.Errorf("the id %q is taken", id)
		}
	}
	for _, at := range []string{"127.0.0.1:45672", "224.0.0.1:45672", "0.0.0.0:45672", "255.255.255.255:45672", "[fe80::1]:45672", "[::ffff:192.0.2.1]:45672", "203.0.113.9:53", "203.0.113.9:0"} {
		if err := (Punch{At: []netip.AddrPort{netip.MustParseAddrPort(at)}}).Check(); err == nil {
			t.Errorf("it may be knocked at %s", at)
		}
	}
	for _, n := range []int{0, MaxPlaces + 1} {
		if err := (Punch{At: make([]netip.AddrPort, n)}).Check(); err == nil {
			t.Errorf("it may be knocked at %d places", n)
		}
	}
}
