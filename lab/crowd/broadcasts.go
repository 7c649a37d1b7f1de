package crowd

import (
	"encoding/json"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/lab/stats"
)

// broadcasts parses each broadcast message once, however many members receive it, and records when each member
// did. Ten thousand members parsing it would take this machine longer than the coordinator takes to send it.
type broadcasts struct {
	began time.Time
	most  int // members

	mu       sync.RWMutex
	seed     maphash.Seed
	messages map[uint64]*message
}

// message is a broadcast message.
type message struct {
	batch *directory.Batch    // nil if the message is about something else
	trust *enrol.TrustMessage // the same

	at []atomic.Int64 // by member: nanoseconds since the broadcasts began; 0: not yet
}

func newBroadcasts(most int) *broadcasts {
	return &broadcasts{began: time.Now(), most: most, seed: maphash.MakeSeed(), messages: map[uint64]*message{}}
}

// take records that a member received a message now. It returns an error if the message is invalid.
func (b *broadcasts) take(member int, topic string, data []byte) (*message, error) {
	now := time.Since(b.began)
	key := maphash.Bytes(b.seed, data)
	b.mu.RLock()
	m := b.messages[key]
	b.mu.RUnlock()
	if m == nil {
		var err error
		if m, err = b.read(key, topic, data); err != nil {
			return nil, err
		}
	}
	m.at[member].CompareAndSwap(0, int64(max(now, 1)))
	return m, nil
}

func (b *broadcasts) read(key uint64, topic string, data []byte) (*message, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m := b.messages[key]; m != nil {
		return m, nil
	}
	m := &message{at: make([]atomic.Int64, b.most)}
	switch topic {
	case enrol.TopicDirectory:
		batch, err := directory.DecodeBatch(data)
		if err != nil {
			return nil, err
		}
		m.batch = &batch
	case enrol.TopicTrust:
		m.trust = &enrol.TrustMessage{}
		if err := json.Unmarshal(data, m.trust); err != nil {
			return nil, err
		}
	}
	b.messages[key] = m
	return m, nil
}

// find returns the first message that is the one looked for.
func (b *broadcasts) find(is func(*message) bool) *message {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, m := range b.messages {
		if is(m) {
			return m
		}
	}
	return nil
}

// forget discards all messages to free memory.
func (b *broadcasts) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.messages)
}

// has reports whether a batch contains a record.
func (m *message) has(s *directory.SignedRecord) bool {
	if m.batch != nil {
		for _, c := range m.batch.Changes {
			if c.Signed.Equal(s) {
				return true
			}
		}
	}
	return false
}

// heard reports whether all these members received the message.
func (m *message) heard(by []int) bool {
	for _, i := range by {
		if m.at[i].Load() == 0 {
			return false
		}
	}
	return true
}

// spread returns how long after since these members received the message.
func (b *broadcasts) spread(m *message, by []int, since time.Time) Spread {
	if m == nil {
		return Spread{Missed: len(by)}
	}
	var out Spread
	var all []float64
	for _, i := range by {
		if at := m.at[i].Load(); at != 0 {
			all = append(all, stats.Milliseconds(b.began.Add(time.Duration(at)).Sub(since)))
		}
	}
	out.Heard, out.Missed = len(all), len(by)-len(all)
	if len(all) > 0 {
		out.First, out.P99, out.Max = stats.Quantile(all, 0), stats.Quantile(all, 0.99), stats.Quantile(all, 1)
	}
	return out
}
