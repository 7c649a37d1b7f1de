package membership

import (
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
)

func anOffer(last byte) Offer {
	return Offer{Addresses: []netip.Addr{netip.AddrFrom4([4]byte{198, 51, 100, last})}, Port: 45672, Roles: []string{"waypoint"}, Kinds: []string{"in-band"}}
}

// echo is a record as it comes back from the directory.
func echo(r directory.Record, self collective.Member) *directory.Verified {
	r.Issued, r.Expires = r.Issued.Truncate(time.Second), r.Expires.Truncate(time.Second)
	return &directory.Verified{Record: r, Holder: self}
}

func TestPublication(t *testing.T) {
	self, now, offer := week(), birth.Add(time.Hour), anOffer(1)
	var p publication
	due := func(o Offer, m collective.Member, has *directory.Verified, now time.Time) bool {
		return !now.Before(p.at(o.record(m, has, now), m, has, now))
	}
	if !due(offer, self, nil, now) {
		t.Fatal("what nobody knows is not published")
	}
	first := offer.record(self, nil, now)
	p.succeeded(first, self, nil, now)
	if due(offer, self, nil, now.Add(30*time.Second)) {
		t.Error("published again before it can have come back")
	}
	if !due(offer, self, nil, now.Add(echoWithin)) {
		t.Error("not published again although it did not come back")
	}
	has := echo(first, self)
	if due(offer, self, has, self.NotAfter.Add(-time.Minute)) {
		t.Error("published anew although nothing has changed")
	}
	renewed := self
	renewed.Serial, renewed.NotAfter = "02", self.NotAfter.Add(time.Hour)
	for what, o := range map[string]Offer{"the certificate": offer, "the address": anOffer(2)} {
		m := renewed
		if what == "the address" {
			m = self
		}
		if !due(o, m, has, now.Add(time.Hour)) {
			t.Errorf("not published although %s is another", what)
		}
	}
	p.failed(now.Add(time.Hour), 1)
	if due(anOffer(2), self, has, now.Add(time.Hour+time.Second)) {
		t.Error("no pause after a failure")
	}
	if !due(anOffer(2), self, has, now.Add(2*time.Hour)) {
		t.Error("given up after a failure")
	}
}

// The record of a certificate of a year is renewed when it is half over, once.
func TestPublicationIsRenewed(t *testing.T) {
	self, offer := week(), anOffer(1)
	self.NotAfter = birth.Add(365 * 24 * time.Hour)
	now := birth
	has := echo(offer.record(self, nil, now), self)
	var p publication
	if at := p.at(offer.record(self, has, now), self, has, now); at.Sub(birth) != recordLife/2 {
		t.Fatalf("renewed after %v", at.Sub(birth))
	}
	now = birth.Add(recordLife / 2)
	r := offer.record(self, has, now)
	p.succeeded(r, self, has, now)
	if at := p.at(r, self, has, now.Add(time.Second)); !at.After(now.Add(time.Second)) {
		t.Error("published again before it can have come back")
	}
}

// Whatever the directory has of this host: after one success and its echo there is nothing to publish; revisions
// grow; and a directory that never echoes is not flooded.
func TestPublicationSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		self, now := week(), birth.Add(time.Duration(rapid.IntRange(0, 6*24).Draw(t, "hours"))*time.Hour)
		var has *directory.Verified
		if rapid.Bool().Draw(t, "known") {
			old := self
			old.Serial = rapid.SampledFrom([]string{"00", "01"}).Draw(t, "serial")
			has = echo(anOffer(rapid.ByteRange(1, 3).Draw(t, "old")).record(old, nil, now.Add(time.Duration(rapid.IntRange(-100, 100).Draw(t, "minutes"))*time.Minute)), old)
		}
		offer, deaf := anOffer(rapid.ByteRange(1, 3).Draw(t, "new")), rapid.Bool().Draw(t, "deaf")
		var p publication
		published := 0
		for range 24 * 60 {
			r := offer.record(self, has, now)
			if has != nil && r.Sequence <= has.Record.Sequence {
				t.Fatalf("number %d after %d", r.Sequence, has.Record.Sequence)
			}
			if !now.Before(p.at(r, self, has, now)) {
				published++
				if rapid.IntRange(0, 3).Draw(t, "refused") == 0 {
					p.failed(now, rapid.Float64Range(0, 1).Draw(t, "chance"))
				} else {
					p.succeeded(r, self, has, now)
					if !deaf {
						has = echo(r, self)
					}
				}
			}
			now = now.Add(time.Minute)
		}
		if most := 160; published > most {
			t.Fatalf("published %d times in a day", published)
		}
		if r := offer.record(self, has, now); !deaf && now.Before(self.NotAfter) && !now.Before(p.at(r, self, has, now)) {
			t.Fatal("it never ends")
		}
	})
}
