package bus

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// Errors of a bucket, for errors.Is.
var (
	ErrNotFound = errors.New("there is no such key")
	ErrConflict = errors.New("somebody else has changed it")
)

// Bucket stores values by key for coordinators, on the disks of one or more servers. After a method has returned nil,
// its change is not lost. If a server dies during a request, the method returns only when its context ends, so the
// context needs a short deadline. Then it is not known whether the change was made.
type Bucket struct {
	name string
	kv   jetstream.KeyValue
}

// Entry is a value, or the deletion of one.
type Entry struct {
	Key      string
	Value    []byte
	Revision uint64 // grows with every change in the bucket
	Deleted  bool
}

// Bucket opens a bucket, and creates it if it does not exist. replicas is the number of servers of an external cluster
// that store it: with 3, one server may be lost. It must be 1 for the embedded server.
func (c *Coordinator) Bucket(ctx context.Context, name string, replicas int) (*Bucket, error) {
	config := jetstream.KeyValueConfig{
		Bucket: name, Storage: jetstream.FileStorage, Replicas: replicas, History: 1, MaxValueSize: MaxPayload,
	}
	if kv, err := c.jetstream.KeyValue(ctx, name); err == nil {
		status, err := kv.Status(ctx)
		if err == nil && isAs(status.Config(), config) {
			return &Bucket{name: name, kv: kv}, nil // an unnecessary update would take disk space
		}
	}
	kv, err := c.jetstream.CreateOrUpdateKeyValue(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open the bucket %s on the bus: %w", name, sayWhy(err))
	}
	return &Bucket{name: name, kv: kv}, nil
}

// isAs reports whether a bucket's configuration equals wanted.
func isAs(has, wanted jetstream.KeyValueConfig) bool {
	return has.Storage == wanted.Storage && has.Replicas == wanted.Replicas && has.History == wanted.History && has.MaxValueSize == wanted.MaxValueSize
}

// Put sets a value.
func (b *Bucket) Put(ctx context.Context, key string, value []byte) (revision uint64, err error) {
	revision, err = b.kv.Put(ctx, key, value)
	return revision, b.wrap("put", key, err)
}

// Update sets a value if the present one has the revision last; 0 means that there is none. Otherwise it returns
// ErrConflict.
func (b *Bucket) Update(ctx context.Context, key string, value []byte, last uint64) (revision uint64, err error) {
	if last == 0 {
		revision, err = b.kv.Create(ctx, key, value)
	} else {
		revision, err = b.kv.Update(ctx, key, value, last)
	}
	return revision, b.wrap("update", key, err)
}

// Get returns a value, or ErrNotFound.
func (b *Bucket) Get(ctx context.Context, key string) (Entry, error) {
	e, err := b.kv.Get(ctx, key)
	if err != nil {
		return Entry{}, b.wrap("get", key, err)
	}
	return entry(e), nil
}

// Last returns the revision of the last change in the bucket. If it is lower than a revision that a coordinator has
// seen, changes were lost, together with the disk or cluster that stored them.
func (b *Bucket) Last(ctx context.Context) (uint64, error) {
	status, err := b.kv.Status(ctx)
	if err != nil {
		return 0, b.wrap("ask for the state of", "*", err)
	}
	stream, ok := status.(interface{ StreamInfo() *jetstream.StreamInfo })
	if !ok {
		return 0, b.wrap("ask for the state of", "*", fmt.Errorf("a bucket of kind %T has no revisions", status))
	}
	return stream.StreamInfo().State.LastSeq, nil
}

// Watch calls f with every value, then current once, and then f with every change until the context ends. It may skip a
// change if another one of the same key followed.
func (b *Bucket) Watch(ctx context.Context, f func(Entry), current func()) error {
	w, err := b.kv.WatchAll(ctx)
	if err != nil {
		return b.wrap("watch", "*", err)
	}
	defer w.Stop() //nolint:errcheck // the subscription ends with the connection at the latest
	for {
		select {
		case e, ok := <-w.Updates():
			switch {
			case !ok && ctx.Err() != nil: // the channel is also closed when ctx ends
				return b.wrap("watch", "*", ctx.Err())
			case !ok:
				return b.wrap("watch", "*", ErrNotConnected)
			case e == nil:
				current()
			default:
				f(entry(e))
			}
		case <-ctx.Done():
			return b.wrap("watch", "*", ctx.Err())
		}
	}
}

func entry(e jetstream.KeyValueEntry) Entry {
	return Entry{Key: e.Key(), Value: e.Value(), Revision: e.Revision(), Deleted: e.Operation() != jetstream.KeyValuePut}
}

func (b *Bucket) wrap(what, key string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jetstream.ErrKeyNotFound):
		err = ErrNotFound
	case errors.Is(err, jetstream.ErrKeyExists):
		err = ErrConflict
	default:
		err = sayWhy(err)
	}
	return fmt.Errorf("%s %s in the bucket %s: %w", what, key, b.name, err)
}
