package history

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/detour-collective/dcol/internal/api"
)

// someStore returns the contents of a file that has several pages.
func someStore(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "whole.db")
	s := openStore(t, path)
	s.db.NoSync = true
	for i := range 400 {
		p := used(noon.Add(time.Duration(i)*time.Minute), 10)
		for w := range 6 {
			p.Paths = append(p.Paths, api.PathUsed{Kind: "in-band", Waypoint: fmt.Sprint("waypoint-", w), Received: uint64(i)})
		}
		if err := s.Add(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// opens opens and uses a file with the given contents. It reports whether the file was whole.
func opens(t *testing.T, what string, data []byte) (whole bool) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "history.db")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(path)
	if _, damaged := errors.AsType[*DamagedError](err); err != nil && !damaged {
		t.Errorf("%s: %v", what, err)
		return false
	}
	s.db.NoSync = true
	if e := s.Add(used(noon, 1)); e != nil {
		t.Errorf("%s: %v", what, e)
	}
	if len(read(t, s, api.StepMinute)) == 0 {
		t.Errorf("%s: nothing can be read", what)
	}
	if e := s.Close(); e != nil {
		t.Errorf("%s: %v", what, e)
	}
	return err == nil
}

// The agent starts whatever has happened to the file, either with its contents or with a new file.
func TestDamageEndsNoAgent(t *testing.T) {
	data := someStore(t)
	if !opens(t, "whole", data) {
		t.Error("the whole file counts as damaged")
	}
	page := os.Getpagesize()
	for size := 0; size < len(data); size += 1 + page {
		opens(t, fmt.Sprintf("%d bytes of %d", size, len(data)), data[:size])
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 120 {
		changed := append([]byte{}, data...)
		what := fmt.Sprintf("change %d", i)
		switch i % 3 {
		case 0: // changed bytes, as from bad memory
			for range 1 + random.IntN(50) {
				changed[random.IntN(len(data))] ^= byte(1 + random.IntN(255))
			}
		case 1: // a page that was not written
			at := random.IntN(len(data)/page) * page
			clear(changed[at : at+page])
		case 2: // a page in another's place
			from, to := random.IntN(len(data)/page)*page, random.IntN(len(data)/page)*page
			copy(changed[to:to+page], data[from:from+page])
		}
		opens(t, what, changed)
	}
}

// A page that refers to itself is damage, and causes no endless loop.
func TestPageInItself(t *testing.T) {
	data := someStore(t)
	page := os.Getpagesize()
	found := false
	for at := 2 * page; at < len(data); at += page {
		if data[at+8] != branchFlag {
			continue
		}
		found = true
		changed := append([]byte{}, data...)
		copy(changed[at+headerSize+8:at+headerSize+16], data[at:at+8]) // the first element's page is the page itself
		opens(t, "a page in itself", changed)
	}
	if !found {
		t.Error("the file has no branch")
	}
}

// A period that cannot be read does not affect others.
func TestUnreadablePeriod(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "history.db"))
	defer s.Close()
	for i := range 3 {
		if err := s.Add(used(noon.Add(time.Duration(i)*time.Minute), 10)); err != nil {
			t.Fatal(err)
		}
	}
	err := s.db.Update(func(tx *bolt.Tx) error {
		return errors.Join(tx.Bucket(minutesBucket).Put(keyOf(noon), []byte("{")), tx.Bucket(hoursBucket).Put(keyOf(begin(noon, api.StepHour)), []byte("[1]")))
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, s, api.StepMinute); len(got) != 2 {
		t.Errorf("%d minutes are left of 2", len(got))
	}
	if err := s.Add(used(noon, 7)); err != nil {
		t.Error(err)
	}
	if got := read(t, s, api.StepHour); len(got) != 1 || got[0].Paths[0].Received != 7 {
		t.Errorf("the hour has %+v", got)
	}
}
