package ui

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// A converter that is offered and not ready yet is not passed over.
func TestConvertingNotReady(t *testing.T) {
	var b strings.Builder
	if err := Converting(&b, api.Converting{Use: "always", Offered: []string{"bob"}}); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); !strings.Contains(got, "none yet: the converter of bob is not ready") {
		t.Error(got)
	}
}

// The use of converters names the addresses that are excluded by their names.
func TestConvertingExcluded(t *testing.T) {
	until := time.Date(2026, 3, 1, 12, 0, 0, 0, time.Local)
	c := api.Converting{
		Use: "auto", ExcludedAll: 3,
		Excluded: []api.ExcludedAddress{{Addr: netip.MustParseAddr("192.0.2.1"), Name: "www.example.org", Until: until}},
	}
	var b strings.Builder
	if err := Converting(&b, c); err != nil {
		t.Fatal(err)
	}
	compare(t, "testdata/converting-excluded.txt", b.String())
}
