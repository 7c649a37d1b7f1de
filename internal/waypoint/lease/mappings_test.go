package lease

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

func noListeners(uint16) bool { return false }

func TestChoosePort(t *testing.T) {
	x := newMappings()
	client := netip.MustParseAddr("192.0.2.1")
	want := target{1, client, netip.MustParseAddrPort("198.51.100.1:443")}
	if port, ok := x.choosePort(want, 443, noListeners); port != 443 || !ok {
		t.Errorf("proposed and free: %d, %v", port, ok)
	}
	chosen, ok := x.choosePort(want, 0, noListeners)
	if chosen < FirstPort || chosen > LastPort || !ok {
		t.Errorf("any: %d, %v", chosen, ok)
	}
	if again, _ := x.choosePort(want, 0, noListeners); again != chosen {
		t.Errorf("the same target gets %d, then %d", chosen, again)
	}
	listening := func(port uint16) bool { return port == 443 || port == chosen }
	if port, _ := x.choosePort(want, 443, listening); port == 443 || port == chosen {
		t.Errorf("a listener's port: %d", port)
	}

	// The last free port of the range is found, and then there is none.
	for port := FirstPort; port <= LastPort; port++ {
		if port != 31337 {
			x.add(&Mapping{Key: rules.Key{Client: client, Port: uint16(port)},
				Server: netip.AddrPortFrom(netip.MustParseAddr("198.51.100.2"), uint16(port)), Member: 2}, time.Unix(1, 0))
		}
	}
	port, ok := x.choosePort(want, FirstPort, noListeners)
	if port != 31337 || !ok {
		t.Errorf("the last free one: %d, %v", port, ok)
	}
	x.add(&Mapping{Key: rules.Key{Client: client, Port: port}, Server: want.server, Member: want.member}, time.Unix(1, 0))
	if port, ok := x.choosePort(want, FirstPort, noListeners); ok {
		t.Errorf("none is free, yet %d", port)
	}
	if port, ok := x.choosePort(target{1, netip.MustParseAddr("192.0.2.2"), want.server}, FirstPort, noListeners); port != FirstPort || !ok {
		t.Errorf("another client: %d, %v", port, ok)
	}
}

// Whatever is added, extended, removed and expired, the views of mappings agree, and mappings come out
// in the order in which they expire.
func TestMappingsAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := newMappings()
		model := make(map[rules.Key]*Mapping)
		begin := time.Unix(0, 0)
		anyOf := func(t *rapid.T) *Mapping {
			keys := make([]*Mapping, 0, len(model))
			for port := range uint16(32) {
				for a := range 4 {
					if m := model[rules.Key{Client: clientNumber(a), Port: port}]; m != nil {
						keys = append(keys, m)
					}
				}
			}
			if len(keys) == 0 {
				t.Skip("empty")
			}
			return rapid.SampledFrom(keys).Draw(t, "mapping")
		}
		at := func(t *rapid.T) time.Time {
			return begin.Add(time.Duration(rapid.IntRange(1, 100).Draw(t, "expires")) * time.Second)
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				m := &Mapping{
					Key:    rules.Key{Client: clientNumber(rapid.IntRange(0, 3).Draw(t, "client")), Port: rapid.Uint16Range(0, 31).Draw(t, "port")},
					Server: netip.AddrPortFrom(netip.MustParseAddr("198.51.100.1"), rapid.Uint16Range(1, 8).Draw(t, "server")),
					Member: rules.MemberID(rapid.IntRange(1, 3).Draw(t, "member")),
				}
				if x.byKey[m.Key] != nil || x.byTarget[m.target()] != nil {
					t.Skip("there")
				}
				x.add(m, at(t))
				model[m.Key] = m
			},
			"extend": func(t *rapid.T) { x.extend(anyOf(t), at(t)) },
			"remove": func(t *rapid.T) {
				m := anyOf(t)
				x.remove(m)
				delete(model, m.Key)
			},
			"expire": func(t *rapid.T) {
				until := at(t)
				var last time.Time
				for m := x.expire(until); m != nil; m = x.expire(until) {
					if m.Expires().After(until) || m.Expires().Before(last) {
						t.Fatalf("%v expired out of turn", m.Expires())
					}
					last = m.Expires()
					delete(model, m.Key)
				}
				for _, m := range model {
					if !m.Expires().After(until) {
						t.Fatalf("%+v should have expired", m)
					}
				}
			},
			"": func(t *rapid.T) {
				if len(x.byKey) != len(model) || len(x.byTarget) != len(model) || x.expiry.Len() != len(model) {
					t.Fatalf("%d by key, %d by target, %d in the heap, want %d", len(x.byKey), len(x.byTarget), x.expiry.Len(), len(model))
				}
				count := make(map[rules.MemberID]int)
				for key, m := range model {
					if x.byKey[key] != m || x.byTarget[m.target()] != m || !x.expiry.Has(&m.lease) {
						t.Fatalf("%+v is not found everywhere", m)
					}
					count[m.Member]++
				}
				if fmt.Sprint(count) != fmt.Sprint(x.byMember) {
					t.Fatalf("counts %v, want %v", x.byMember, count)
				}
			},
		})
	})
}

func clientNumber(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }
