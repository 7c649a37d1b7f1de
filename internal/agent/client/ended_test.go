package client

import (
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// The connections that ended last are remembered, the earliest first.
func TestLately(t *testing.T) {
	var l lately
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for i := range mostEnded + 3 {
		l.add(api.Ended{Token: tokenText(0x1a2b), At: begin.Add(time.Duration(i) * time.Second)})
	}
	list := l.list()
	if len(list) != mostEnded {
		t.Fatalf("%d are remembered, not %d", len(list), mostEnded)
	}
	for i, e := range list {
		if want := begin.Add(time.Duration(i+3) * time.Second); !e.At.Equal(want) || e.Token != "00001a2b" {
			t.Fatalf("the one at %d is %+v, want %v", i, e, want)
		}
	}
}
