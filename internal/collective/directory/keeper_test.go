package directory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// coordinator answers a keeper's asks, unless it is away.
type coordinator struct {
	t       testing.TB
	trust   *collective.Trust
	journal *Journal

	mu   sync.Mutex
	away error
	hold chan struct{} // answers wait until it is closed; may be nil
	asks []time.Time
}

func (c *coordinator) Ask(_ context.Context, data []byte) ([]byte, error) {
	ask, err := DecodeAsk(data)
	if err != nil {
		c.t.Error(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asks = append(c.asks, time.Now())
	if c.away != nil {
		return nil, c.away
	}
	b := c.journal.Answer(ask)
	if c.hold != nil {
		<-c.hold
	}
	return b.Encode()
}

func (c *coordinator) asked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.asks)
}

func (c *coordinator) goAway(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away = err
}

// put stores a record, and returns the message that announces it.
func (c *coordinator) put(s *SignedRecord, name string) []byte {
	c.t.Helper()
	before := c.journal.Head().Head
	if err := c.journal.Put(before+1, name, s); err != nil {
		c.t.Fatal(err)
	}
	b := c.journal.Answer(Ask{Epoch: c.journal.epoch, After: before})
	data, err := b.Encode()
	if err != nil {
		c.t.Fatal(err)
	}
	return data
}

func (c *coordinator) open(file string, changed func([]Event)) *Keeper {
	return Open(Config{
		File: file, Limits: DefaultLimits(), Trust: func() *collective.Trust { return c.trust },
		Ask: c.Ask, Changed: changed, Log: quiet(),
	})
}

// inTime runs a test in virtual time, with an authority and a coordinator.
func inTime(t *testing.T, f func(t *testing.T, a *authority, c *coordinator)) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t, testCollective)
		f(t, a, &coordinator{t: t, trust: a.trust(t), journal: NewJournal(7)})
	})
}

func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestKeeperFollows(t *testing.T) {
	inTime(t, func(t *testing.T, a *authority, c *coordinator) {
		c.journal.most = 8000 // so that the first copy takes several answers
		for i := range 30 {
			m := a.issue(t, fmt.Sprint("m", i), terms{})
			c.put(m.signed(t, 1), m.name)
		}
		file := filepath.Join(t.TempDir(), "directory")
		members := map[string]*Verified{}
		k := c.open(file, func(events []Event) {
			for _, e := range events {
				members[e.Name] = e.New
			}
		})
		synctest.Wait()
		if s := k.State(); s.Members != 30 || s.Behind || s.Epoch != 7 || s.Revision != 30 || c.asked() < 2 || len(members) != 30 {
			t.Fatalf("after %d asks: %+v, told of %d", c.asked(), s, len(members))
		}
		asks := c.asked()
		alice, bob := a.issue(t, "alice", terms{}), a.issue(t, "bob", terms{})
		k.Receive(c.put(alice.signed(t, 1), "alice"))
		synctest.Wait()
		if k.State().Members != 31 || members["alice"] == nil || c.asked() != asks {
			t.Fatalf("a change that was told: %+v, %d asks", k.State(), c.asked()-asks)
		}
		c.put(bob.signed(t, 1), "bob") // this one is lost
		k.Receive(c.put(alice.signed(t, 2), "alice"))
		wait(firstPause)
		if members["bob"] == nil || members["alice"].Record.Sequence != 2 || k.State().Behind {
			t.Fatalf("a change that was lost: %+v", k.State())
		}
		c.put(bob.signed(t, 2), "bob") // while there is no connection
		k.Connected()
		synctest.Wait()
		if members["bob"].Record.Sequence != 2 {
			t.Fatalf("what was missed: %+v", k.State())
		}
		k.Close()

		// Without a coordinator, the copy on disk is used.
		c.goAway(errors.New("away"))
		told := 0
		k = c.open(file, func(events []Event) { told += len(events) })
		synctest.Wait()
		if s := k.State(); s.Members != 32 || told != 32 || !s.Behind || s.AskErr == nil || s.LoadErr != nil || s.Revision != 34 {
			t.Errorf("from the file: %+v, told of %d", s, told)
		}
		k.View(func(d *Directory) {
			if v, ok := d.Get("bob"); !ok || v.Record.Sequence != 2 {
				t.Errorf("from the file: %+v", v)
			}
		})
		k.Close()
	})
}

// An answer from before the connection was lost is not the last word.
func TestKeeperHearsAnOldAnswer(t *testing.T) {
	inTime(t, func(t *testing.T, a *authority, c *coordinator) {
		c.hold = make(chan struct{})
		k := c.open("", nil)
		defer k.Close()
		synctest.Wait()
		alice := a.issue(t, "alice", terms{})
		c.put(alice.signed(t, 1), "alice") // not announced
		k.Connected()
		synctest.Wait()
		close(c.hold)
		synctest.Wait()
		if s := k.State(); s.Members != 1 || s.Behind {
			t.Errorf("%+v after %d asks", s, c.asked())
		}
	})
}

// A change that is announced before the first answer arrives may be missing in that answer.
func TestKeeperHearsBeforeTheFirstAnswer(t *testing.T) {
	inTime(t, func(t *testing.T, a *authority, c *coordinator) {
		c.hold = make(chan struct{})
		k := c.open("", nil)
		defer k.Close()
		synctest.Wait()
		alice := a.issue(t, "alice", terms{})
		k.Receive(c.put(alice.signed(t, 1), "alice"))
		synctest.Wait()
		close(c.hold)
		synctest.Wait()
		if s := k.State(); s.Members != 1 || s.Behind {
			t.Errorf("%+v after %d asks", s, c.asked())
		}
	})
}

func TestKeeperAsksWithPatience(t *testing.T) {
	inTime(t, func(t *testing.T, a *authority, c *coordinator) {
		c.goAway(errors.New("no coordinator is there"))
		k := c.open("", nil)
		defer k.Close()
		wait(time.Hour)
		n := c.asked()
		if n < 60 || n > 150 {
			t.Errorf("asked %d times in an hour", n)
		}
		alice := a.issue(t, "alice", terms{})
		c.put(alice.signed(t, 1), "alice")
		c.goAway(nil)
		k.Connected()
		synctest.Wait()
		if k.State().Members != 1 || k.State().AskErr != nil || c.asked() != n+1 {
			t.Errorf("after %d more asks: %+v", c.asked()-n, k.State())
		}
		// A coordinator that promises more batches and never sends them is not asked endlessly.
		head := Batch{Epoch: 7, After: 1, Revision: 1, Head: 9}
		data, err := head.Encode()
		if err != nil {
			t.Fatal(err)
		}
		n = c.asked()
		k.Receive(data)
		wait(time.Hour)
		if asked := c.asked() - n; asked < 60 || asked > 150 || k.State().AskErr == nil {
			t.Errorf("asked a coordinator that lags %d times in an hour: %v", asked, k.State().AskErr)
		}
	})
}

func TestKeeperIsFlooded(t *testing.T) {
	inTime(t, func(t *testing.T, a *authority, c *coordinator) {
		hold := make(chan struct{})
		held := false
		k := c.open("", func([]Event) {
			if !held {
				held = true
				<-hold
			}
		})
		defer k.Close()
		synctest.Wait()
		alice := a.issue(t, "alice", terms{})
		k.Receive(c.put(alice.signed(t, 1), "alice"))
		synctest.Wait()
		for i := range uint64(3 * inbox) {
			k.Receive(c.put(alice.signed(t, i+2), "alice"))
		}
		k.Receive([]byte("noise"))
		close(hold)
		wait(time.Minute)
		k.Receive([]byte("noise"))
		synctest.Wait()
		k.View(func(d *Directory) {
			if v, ok := d.Get("alice"); !ok || v.Record.Sequence != 3*inbox+1 {
				t.Errorf("ended up with %+v", v)
			}
		})
		if s := k.State(); s.Refused[MalformedMessage] != 1 || s.LastRefusal == nil || s.Behind {
			t.Errorf("%+v", s)
		}
	})
}

func TestKeeperLosesMembers(t *testing.T) {
	inTime(t, func(t *testing.T, a *authority, c *coordinator) {
		issued, err := a.signer.Issue(collective.Request{Name: "mallory", Validity: 48 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(issued.CertFile)
		if err != nil {
			t.Fatal(err)
		}
		mallory := member{"mallory", [][]byte{blockOf(t, string(data)), a.cert.Raw}, keyIn(t, issued.KeyFile)}
		bob := a.issue(t, "bob", terms{to: time.Now().Add(time.Hour)})
		c.put(mallory.signed(t, 1), "mallory")
		c.put(bob.signed(t, 1), "bob")
		var mu sync.Mutex
		var left []string
		k := c.open("", func(events []Event) {
			mu.Lock()
			defer mu.Unlock()
			for _, e := range events {
				if e.Kind == Left {
					left = append(left, e.Name)
				}
			}
		})
		defer k.Close()
		gone := func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(left)
		}
		synctest.Wait()
		if _, err := a.signer.Revoke("mallory", collective.PrivilegeWithdrawn); err != nil {
			t.Fatal(err)
		}
		c.trust = a.trust(t)
		k.TrustChanged()
		synctest.Wait()
		if left := gone(); !slices.Equal(left, []string{"mallory"}) {
			t.Fatalf("left after the expulsion: %v", left)
		}
		wait(time.Hour + tickEvery)
		if left := gone(); !slices.Equal(left, []string{"mallory", "bob"}) || k.State().Members != 0 {
			t.Fatalf("left after an hour: %v", left)
		}
	})
}

func TestKeeperSparesTheDisk(t *testing.T) {
	inTime(t, func(t *testing.T, a *authority, c *coordinator) {
		file := filepath.Join(t.TempDir(), "directory")
		if err := os.WriteFile(file, []byte("half a fi"), 0o600); err != nil {
			t.Fatal(err)
		}
		k := c.open(file, nil)
		synctest.Wait()
		var fileErr *FileError
		if s := k.State(); !errors.As(s.LoadErr, &fileErr) || fileErr.Aside == "" {
			t.Errorf("a damaged file: %+v", s)
		}
		alice := a.issue(t, "alice", terms{})
		writes := map[time.Time]bool{}
		const seconds = 120
		for i := range uint64(seconds) {
			k.Receive(c.put(alice.signed(t, i+1), "alice"))
			wait(time.Second)
			writes[k.State().Saved] = true
		}
		if n := len(writes); n < 10 || n > seconds/int(soonest/time.Second)+1 {
			t.Errorf("written %d times in %d s", n, seconds)
		}
		n := k.State().Saved
		wait(time.Hour)
		if k.State().Saved.Sub(n) > 2*soonest {
			t.Error("written without need")
		}
		// A disk that fails is reported until it works again.
		if err := errors.Join(os.Remove(file), os.Mkdir(file, 0o700)); err != nil {
			t.Fatal(err)
		}
		k.Receive(c.put(alice.signed(t, 1000), "alice"))
		wait(time.Minute)
		if k.State().SaveErr == nil {
			t.Error("a copy that cannot be written is no problem")
		}
		os.Remove(file)
		wait(time.Minute)
		if err := k.State().SaveErr; err != nil {
			t.Error(err)
		}
		k.Receive(c.put(alice.signed(t, 1001), "alice"))
		synctest.Wait()
		k.Close()
		d, err := Load(t.Context(), file, DefaultLimits(), c.trust, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if v, ok := d.Get("alice"); !ok || v.Record.Sequence != 1001 {
			t.Errorf("on disk after the end: %+v", v)
		}
	})
}

func TestSaveEvery(t *testing.T) {
	for bytes, want := range map[int]time.Duration{0: soonest, 100 << 10: soonest, 2 << 20: 102400 * time.Millisecond, 1 << 30: latest} {
		if got := saveEvery(bytes); got != want {
			t.Errorf("%d bytes every %v, want %v", bytes, got, want)
		}
	}
}
