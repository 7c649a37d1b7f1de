package battery

import (
	"sync"
	"time"

	"github.com/detour-collective/dcol/lab/stats"
)

// messageSize is that of the messages of a stream, in bytes.
const messageSize = 1250

// messages are those of a stream: at which time each was to be sent, and how long it took from then.
type messages struct {
	rate  float64 // Mbit/s; 0: no stream
	began time.Time

	mu    sync.Mutex
	taken []float64 // ms
}

// due returns when a message is to be sent.
func (m *messages) due(number int) time.Time {
	return m.began.Add(time.Duration(float64(number) * messageSize * 8 / m.rate * float64(time.Microsecond)))
}

// arrived notes the messages that are complete with a number of bytes.
func (m *messages) arrived(bytes int64, now time.Time) {
	if m.rate == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for int64(len(m.taken)+1)*messageSize <= bytes {
		m.taken = append(m.taken, milliseconds(now.Sub(m.due(len(m.taken)))))
	}
}

// delays adds the median and the longest delay. A message that has not come yet counts with the time that it is late.
func (m *messages) delays(v values) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.taken) == 0 {
		return
	}
	v["delay_p50"] = stats.Quantile(m.taken, 0.5)
	v["delay_max"] = max(stats.Quantile(m.taken, 1), milliseconds(time.Since(m.due(len(m.taken)))))
}
