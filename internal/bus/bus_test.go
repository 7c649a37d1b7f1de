package bus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if config := os.Getenv(asNatsServer); config != "" {
		os.Exit(natsServer(config))
	}
	if job := os.Getenv(asMembers); job != "" {
		os.Exit(manyMembers(job))
	}
	goleak.VerifyTestMain(m)
}

func TestAskAndTell(t *testing.T) {
	w := newWorld(t)
	s := w.serve(t.TempDir(), "127.0.0.1:0")
	co := w.coordinator(Handlers{Handle: func(ctx context.Context, r Request) ([]byte, error) {
		if r.Topic == "no" {
			return nil, errors.New("not today")
		}
		return echo().Handle(ctx, r)
	}}, s.Endpoint())

	var mu sync.Mutex
	got := map[string][]string{}
	var members []*Member
	for _, name := range []string{"alice", "bob"} {
		members = append(members, w.member(w.identity(name), func(m Message) {
			mu.Lock()
			defer mu.Unlock()
			got[name] = append(got[name], fmt.Sprintf("%s %s %v", m.Topic, m.Data, m.ToAll))
		}, s.Endpoint()))
	}
	alice := members[0]
	answer, err := alice.Ask(within(t, 5*time.Second), "records.put", []byte("hello"))
	if err != nil || string(answer) != "alice records.put hello" {
		t.Fatalf("%q, %v", answer, err)
	}
	if _, err := members[1].Ask(within(t, 5*time.Second), "x", nil); err != nil { // bob's subscriptions have arrived, too
		t.Fatal(err)
	}
	_, err = alice.Ask(within(t, 5*time.Second), "no", nil)
	var refusal *Refusal
	if !errors.As(err, &refusal) || refusal.Why != "not today" {
		t.Fatalf("a refusal: %v", err)
	}
	if err := co.Flush(within(t, 5*time.Second)); err != nil {
		t.Errorf("flush: %v", err)
	}
	if st := alice.State(); !st.Connected || st.Server != "hub" || st.Connects != 1 || st.Err != nil {
		t.Fatalf("state %+v", st)
	}

	if err := co.TellAll("records", []byte("1")); err != nil {
		t.Fatal(err)
	}
	if err := co.Tell("bob", "check", []byte("2")); err != nil {
		t.Fatal(err)
	}
	if err := co.TellAll("trust", []byte("3")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both hear what is theirs", 5*time.Second, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Equal(got["alice"], []string{"records 1 true", "trust 3 true"}) &&
			slices.Equal(got["bob"], []string{"records 1 true", "check 2 false", "trust 3 true"})
	})

	if _, err := alice.Ask(within(t, time.Second), "records.*", nil); err == nil {
		t.Error("asked about a wildcard")
	}
	if err := alice.Tell("records", make([]byte, MaxPayload+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	co.Close()
	if _, err := alice.Ask(within(t, 5*time.Second), "records", nil); !errors.Is(err, ErrNoCoordinator) {
		t.Errorf("without a coordinator: %v", err)
	}
}

// TestServerRestarts: members reconnect by themselves, and the store keeps what it had accepted.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	store := t.TempDir()
	s := w.serve(store, "127.0.0.1:0")
	co := w.coordinator(echo(), s.Endpoint())
	alice := w.member(w.identity("alice"), nothing, s.Endpoint())
	ctx := within(t, 30*time.Second)
	b, err := co.Bucket(ctx, "records", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(ctx, "alice", []byte("a record")); err != nil {
		t.Fatal(err)
	}

	s.Close()
	eventually(t, "alice knows", 5*time.Second, func() bool { return !alice.State().Connected })
	if st := alice.State(); st.Err == nil || st.Server != "" {
		t.Fatalf("state %+v", st)
	}
	if err := alice.Tell("x", nil); !errors.Is(err, ErrNotConnected) || strings.Contains(err.Error(), "buffer") {
		t.Fatalf("telling without a server: %v", err)
	}
	eventually(t, "alice says why", 10*time.Second, func() bool { return strings.Contains(alice.State().Err.Error(), "refused") })

	again := w.serve(store, s.Endpoint().Address)
	eventually(t, "both are back", 20*time.Second, func() bool { return alice.State().Connected && co.State().Connected })
	if damage := again.Damage(); len(damage) > 0 {
		t.Errorf("a clean stop left damage: %v", damage)
	}
	eventually(t, "the coordinator subscribed again", 20*time.Second, func() bool {
		_, err := alice.Ask(ctx, "x", nil)
		if err != nil && !errors.Is(err, ErrNoCoordinator) {
			t.Fatal(err)
		}
		return err == nil
	})
	if e, err := b.Get(ctx, "alice"); err != nil || string(e.Value) != "a record" {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestBucket(t *testing.T) {
	w := newWorld(t)
	s := w.serve(t.TempDir(), "127.0.0.1:0")
	co := w.coordinator(echo(), s.Endpoint())
	ctx := within(t, 30*time.Second)
	b, err := co.Bucket(ctx, "records", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(ctx, "alice"); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	first, err := b.Update(ctx, "alice", []byte("1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Update(ctx, "alice", []byte("1"), 0); !errors.Is(err, ErrConflict) {
		t.Errorf("made twice: %v", err)
	}
	second, err := b.Put(ctx, "alice", []byte("2"))
	if err != nil || second <= first {
		t.Fatal(first, second, err)
	}
	if _, err := b.Update(ctx, "alice", []byte("3"), first); !errors.Is(err, ErrConflict) {
		t.Errorf("updated an old revision: %v", err)
	}

	watching, stop := context.WithCancel(ctx)
	var mu sync.Mutex
	var seen []string
	add := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, s)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- b.Watch(watching, func(e Entry) { add(fmt.Sprintf("%s=%s %v", e.Key, e.Value, e.Deleted)) }, func() { add("current") })
	}()
	saw := func(want ...string) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.Equal(seen, want)
		}
	}
	eventually(t, "what there is", 5*time.Second, saw("alice=2 false", "current"))
	if err := b.kv.Delete(ctx, "alice"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the change", 5*time.Second, saw("alice=2 false", "current", "alice= true"))
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the watch ended with %v", err)
	}
	if _, err := b.Get(ctx, "alice"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if _, err := b.Put(ctx, "alice", make([]byte, MaxPayload+1)); err == nil {
		t.Error("a value over the limit was taken")
	}
}
