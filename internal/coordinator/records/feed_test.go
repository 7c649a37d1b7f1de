package records

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

func testFeed(ctx context.Context) *feed {
	s := NewStore(Config{Identity: &collective.Identity{}, Clock: time.Now, Log: slog.New(slog.DiscardHandler)})
	return s.newFeed(nil, 1, ctx.Done())
}

// A change that comes back from the store after the store was asked how far it is, and before it has
// answered, is not lost.
func TestStoreComparedWhileItGrows(t *testing.T) {
	f := testFeed(t.Context())
	f.applied = 4
	grows := func(context.Context) (uint64, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.applied++
		return 4, nil
	}
	if err := f.compare(t.Context(), grows); err != nil {
		t.Error(err)
	}
	if err := f.compare(t.Context(), grows); !errors.Is(err, errLostChanges) {
		t.Errorf("a store at 4 that was at 5 has lost nothing: %v", err)
	}
}

// A waiting reader learns at once that another feed has taken over.
func TestFeedThatIsOver(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	f := testFeed(ctx)
	stop()
	if err := f.wait(t.Context(), 1); !errors.Is(err, ErrStarting) {
		t.Errorf("waits: %v", err)
	}
}
