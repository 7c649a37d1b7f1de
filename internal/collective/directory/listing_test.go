package directory

import (
	"testing"
	"time"
)

// Within one store's life, a member that is in no part of a listing is gone.
func TestListing(t *testing.T) {
	a := newAuthority(t, testCollective)
	te := newTeller(t, a, DefaultLimits())
	te.j.remember = 0 // every removal is forgotten at once
	alice, bob := a.issue(t, "alice", terms{}), a.issue(t, "bob", terms{})
	te.put(alice.signed(t, 1))
	te.put(bob.signed(t, 1))
	if err := te.j.Remove(te.j.Head().Head+1, "alice", "gone"); err != nil {
		t.Fatal(err)
	}
	te.d.Doubt()
	te.want("listed", inWords(te.all()), "alice left")
	if te.d.LastRefusal() != nil || te.d.Len() != 1 {
		t.Error(te.d.Len(), te.d.LastRefusal())
	}
}

// A change announced before a listing began, and delivered during it, does not bring back a member that the
// listing leaves out.
func TestToldWhileListing(t *testing.T) {
	a := newAuthority(t, testCollective)
	te := newTeller(t, a, DefaultLimits())
	te.d = New(DefaultLimits())
	names := []string{"alice", "bob", "carol"}
	for i, name := range names {
		if err := te.j.Put(uint64(i+1), name, a.issue(t, name, terms{}).signed(t, 1)); err != nil {
			t.Fatal(err)
		}
	}
	told := te.j.Answer(Ask{Epoch: 1, After: 1}) // bob and carol
	if err := te.j.Remove(4, "bob", "gone"); err != nil {
		t.Fatal(err)
	}
	te.j.most = 1 // a record in each message
	ask, _ := te.d.Behind()
	te.want("the first part", inWords(te.d.Answer(te.j.Answer(ask), te.trust, te.now)), "alice joined")
	te.want("told before", inWords(te.d.Apply(told, te.trust, te.now)), "")
	te.want("the rest", inWords(te.all()), "carol joined")
	if _, there := te.d.Get("bob"); there {
		t.Error("bob was removed, and is there")
	}
}

// A listing that was made before the last announced change does not hide that change.
func TestToldBeforeListing(t *testing.T) {
	a := newAuthority(t, testCollective)
	te := newTeller(t, a, DefaultLimits())
	te.j.remember = 0 // so that who missed a removal gets a listing
	te.put(a.issue(t, "alice", terms{}).signed(t, 1))
	if err := te.j.Remove(2, "alice", "gone"); err != nil {
		t.Fatal(err)
	}
	te.d.Doubt()
	ask, _ := te.d.Behind()
	listing := te.j.Answer(ask)
	if err := te.j.Put(3, "bob", a.issue(t, "bob", terms{}).signed(t, 1)); err != nil {
		t.Fatal(err)
	}
	te.d.Apply(te.j.Answer(Ask{Epoch: 1, After: 2}), te.trust, te.now)
	te.want("the listing", inWords(te.d.Answer(listing, te.trust, te.now)), "alice left")
	te.want("asked again", inWords(te.all()), "bob joined")
}

func TestBehind(t *testing.T) {
	a := newAuthority(t, testCollective)
	d, trust, now := New(DefaultLimits()), a.trust(t), time.Now()
	want := func(what string, ask Ask, behind bool) {
		t.Helper()
		if got, b := d.Behind(); got != ask && behind || b != behind {
			t.Errorf("%s: asks %+v, %v; want %+v, %v", what, got, b, ask, behind)
		}
	}
	s := a.issue(t, "alice", terms{}).signed(t, 1)
	want("new", Ask{}, true)
	d.Apply(Batch{Epoch: 1, After: 4, Revision: 5, Head: 5, Changes: []Change{{Revision: 5, Signed: s}}}, trust, now)
	want("told of one thing", Ask{}, true)
	d.Answer(Batch{Epoch: 1, Revision: 3, Head: 5, Listing: 6}, trust, now)
	want("half a listing", Ask{Epoch: 1, After: 3, Listing: 6}, true)
	d.Apply(Batch{Epoch: 1, After: 2, Revision: 3, Head: 3}, trust, now)
	want("an old batch does not end it", Ask{Epoch: 1, After: 3, Listing: 6}, true)
	d.Answer(Batch{Epoch: 1, After: 3, Revision: 5, Head: 5, Listing: 6, Changes: []Change{{Revision: 5, Signed: s}}}, trust, now)
	want("a listing", Ask{}, false)
	if d.Len() != 1 {
		t.Errorf("%d members", d.Len())
	}
	d.Apply(Batch{Epoch: 1, After: 7, Revision: 8, Head: 8}, trust, now)
	want("a gap", Ask{Epoch: 1, After: 5}, true)
	d.Answer(Batch{Epoch: 1, After: 5, Revision: 8, Head: 8}, trust, now)
	want("closed", Ask{}, false)
	d.Apply(Batch{Epoch: 1, After: 9, Revision: 9, Head: 9}, trust, now)
	want("only the head is told", Ask{Epoch: 1, After: 8}, true)
	d.Answer(Batch{Epoch: 1, After: 6, Revision: 6, Head: 6}, trust, now)
	want("a coordinator that lags", Ask{Epoch: 1, After: 8}, true)
	d.Answer(Batch{Epoch: 1, After: 8, Revision: 9, Head: 9}, trust, now)
	want("closed again", Ask{}, false)
	d.Apply(Batch{Epoch: 2, After: 1, Revision: 2, Head: 2}, trust, now)
	want("another store", Ask{Epoch: 1, After: 9}, true)
	d.Answer(Batch{Epoch: 2, Revision: 2, Head: 2, Listing: 3}, trust, now)
	want("listed", Ask{}, false)
}
