package coordinator

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/coordinator/gate"
	"github.com/detour-collective/dcol/internal/enrol"
)

const (
	// followEvery is the interval at which the authority is checked for changes by the operator (dcol ca).
	followEvery = time.Second
	// hashEvery bounds the time until a member learns that it has missed a change of trust.
	hashEvery = 10 * time.Minute
)

// trustFeed announces roots and revocation lists to all members.
type trustFeed struct {
	bus *gate.Bus
	log *slog.Logger

	mu        sync.Mutex
	announced string // hash of the last announcement
	next      time.Time
}

// announce sends roots and lists to all members, or only their hash if they are too large for a message.
func (t *trustFeed) announce(m enrol.TrustMessage) error {
	data, err := encodeTrust(m)
	if err != nil {
		return err
	}
	if err := t.bus.TellAll(enrol.TopicTrust, data); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.announced = m.Hash
	return nil
}

// follow announces roots and lists if they have changed, and their hash from time to time.
func (t *trustFeed) follow(m enrol.TrustMessage, now time.Time) {
	t.mu.Lock()
	changed, due := t.announced != m.Hash, !now.Before(t.next)
	t.mu.Unlock()
	switch {
	case changed:
	case due:
		m = enrol.TrustMessage{Hash: m.Hash}
	default:
		return
	}
	if err := t.announce(m); err != nil {
		t.log.Debug("coordinator: roots and lists cannot be announced yet", "err", err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next = now.Add(hashEvery)
}

func encodeTrust(m enrol.TrustMessage) ([]byte, error) {
	data, err := json.Marshal(m)
	if err == nil && len(data) > bus.MaxPayload {
		data, err = json.Marshal(enrol.TrustMessage{Hash: m.Hash})
	}
	if err != nil {
		return nil, fmt.Errorf("write roots and lists: %w", err)
	}
	return data, nil
}

// answerTrust returns the roots and lists for a member that has those with this hash. If they are the same, it returns only
// the hash.
func answerTrust(m enrol.TrustMessage, hash string) ([]byte, error) {
	if hash == m.Hash {
		m.Roots, m.Lists = "", ""
	}
	return encodeTrust(m)
}
