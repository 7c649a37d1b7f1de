package cc

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf/ringbuf"
)

// Recording is a registration whose program records each ACK.
type Recording struct {
	*Registration
	reader *ringbuf.Reader
}

// Record registers an algorithm under a name of its own, and records its ACKs.
func Record(a Algorithm) (*Recording, error) {
	spec, err := loaders[a]()
	if err != nil {
		return nil, err
	}
	if err := spec.Variables["recording"].Set(uint32(1)); err != nil {
		return nil, err
	}
	spec.Maps["records"].MaxEntries = 1 << 24
	r, err := register(spec, a, fmt.Sprintf("r%d_%s", os.Getpid()%10000, a))
	if err != nil {
		return nil, err
	}
	reader, err := ringbuf.NewReader(r.all.Maps["records"])
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return &Recording{r, reader}, nil
}

// Take returns the records of so far.
func (r *Recording) Take() (records [][]byte, err error) {
	if err := r.reader.Flush(); err != nil {
		return nil, err
	}
	for {
		got, err := r.reader.Read()
		if errors.Is(err, ringbuf.ErrFlushed) {
			return records, nil
		}
		if err != nil {
			return nil, err
		}
		records = append(records, got.RawSample)
	}
}

// Close ends the recording and the registration.
func (r *Recording) Close() error { return errors.Join(r.reader.Close(), r.Registration.Close()) }

// Replay returns how many of the records the model was compared with, those at which the program read all subflows, or for
// wVegas ended a round, and what differs.
func Replay(a Algorithm, records [][]byte) (compared, looked int, differences []string) {
	for i, b := range records {
		var did bool
		var text string
		if a == WVegas {
			did, text = replayVegas(b)
		} else {
			did, text = replayCoupled(a, b)
		}
		compared++
		if did {
			looked++
		}
		if text != "" {
			differences = append(differences, fmt.Sprintf("ACK %d: %s", i, text))
		}
	}
	return compared, looked, differences
}
