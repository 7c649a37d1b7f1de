package member

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/path/claim"
)

// A member reads what others say about the waypoints that it uses, and nothing else.
func TestClaimsOf(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	record := func(name string, measured ...directory.Measurement) *directory.Verified {
		return &directory.Verified{Record: directory.Record{Name: name, Issued: at, Measured: measured}}
	}
	all := slices.Values([]*directory.Verified{
		record("alice", directory.Measurement{Waypoint: "bob", Loss: 1}),
		record("carol", directory.Measurement{Waypoint: "bob", Loss: 2, Goodput: 3}, directory.Measurement{Waypoint: "eve", Loss: 1}),
		record("dave"), record("mia", directory.Measurement{Waypoint: "eve", Loss: 1}),
	})
	want := []claim.Heard{{Member: "carol", At: at, Claims: []claim.Claim{{Waypoint: "bob", Loss: 2, Goodput: 3}}}}
	if got := claimsOf(all, "alice", []string{"bob", "zoe"}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Only waypoints of the directory are named to others.
func TestPublishable(t *testing.T) {
	own := []claim.Claim{{Waypoint: "private", Loss: 1}, {Waypoint: "bob", Loss: 2, Goodput: 3}}
	got := publishable(own, func(name string) bool { return name == "bob" })
	if want := []directory.Measurement{{Waypoint: "bob", Loss: 2, Goodput: 3}}; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
