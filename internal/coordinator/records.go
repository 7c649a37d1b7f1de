package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective/directory"
)

// The bucket of records, on the bus: for each member that ever had one, its record or why it has none any
// more, and the epoch of the store, which a store that has lost changes must replace.
const (
	bucketName = "records"
	epochKey   = "feed.epoch" // no member's name has a dot

	isRecord  = 'R' // first byte of a value: then the record, as it travels
	isRemoval = 'X' // then why
)

func storedRecord(s *directory.SignedRecord) ([]byte, error) {
	data, err := s.Encode()
	return append([]byte{isRecord}, data...), err
}

func storedRemoval(why string) []byte { return append([]byte{isRemoval}, why...) }

// readStored reads a value. No record: it was removed.
func readStored(e bus.Entry) (s *directory.SignedRecord, why string, err error) {
	switch {
	case e.Deleted:
		return nil, "", nil
	case len(e.Value) > 0 && e.Value[0] == isRecord:
		s, err = directory.DecodeRecord(e.Value[1:])
		return s, "", err
	case len(e.Value) > 0 && e.Value[0] == isRemoval:
		return nil, string(e.Value[1:]), nil
	}
	return nil, "", errors.New("neither a record nor a removal")
}

// sequenceOf is a record's number. A record in the store was verified once.
func sequenceOf(s *directory.SignedRecord) uint64 {
	var r struct {
		Sequence uint64 `json:"sequence"`
	}
	if json.Unmarshal(s.Payload, &r) != nil {
		return 0
	}
	return r.Sequence
}

// openStored opens the bucket and decides whether it is what it was when we saw it last. If it has lost
// changes, is new or restored, it gets a new epoch, and is filled from our own copy as far as that is newer.
func (c *Coordinator) openStored(ctx context.Context, e *engine, again, restored bool) (*bus.Bucket, uint64, error) {
	own, err := directory.Load(ctx, copyFile(c.config.Dir), directory.DefaultLimits(), c.config.Identity.Trust(), c.now())
	if err != nil {
		c.config.Log.Warn("coordinator: without its own copy of the directory", "err", err)
	}
	b, epoch, last, err := c.lookStored(ctx, e)
	if err != nil {
		return nil, 0, err
	}
	seenEpoch, seen := own.Position()
	damaged := e.damaged() && !again // the server tells of what it found when it started
	if epoch != 0 && !damaged && !restored && (epoch != seenEpoch || last >= seen) {
		return b, epoch, nil
	}
	next := max(uint64(c.now().UnixMilli()), epoch+1, seenEpoch+1)
	c.config.Log.Info("coordinator: the directory's store is new, or has lost changes: filling it", "epoch", next, "from", own.Len())
	if err := refill(ctx, b, own); err != nil {
		return nil, 0, err
	}
	// Last, so that a crash on the way has it done again.
	brief, cancel := context.WithTimeout(ctx, storeWithin)
	defer cancel()
	if _, err := b.Put(brief, epochKey, []byte(strconv.FormatUint(next, 10))); err != nil {
		return nil, 0, err
	}
	return b, next, nil
}

// lookStored says how far the store is. A cluster that is just starting answers nothing, however long one
// waits; it must be asked again.
func (c *Coordinator) lookStored(ctx context.Context, e *engine) (b *bus.Bucket, epoch, last uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeWithin)
	defer cancel()
	if b, err = e.link.Bucket(ctx, bucketName, c.replicas()); err != nil {
		return nil, 0, 0, err
	}
	if last, err = b.Last(ctx); err != nil {
		return nil, 0, 0, err
	}
	epoch, err = storedEpoch(ctx, b)
	return b, epoch, last, err
}

func storedEpoch(ctx context.Context, b *bus.Bucket) (uint64, error) {
	e, err := b.Get(ctx, epochKey)
	if errors.Is(err, bus.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	epoch, err := strconv.ParseUint(string(e.Value), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the directory's store has no good epoch: %w", err)
	}
	return epoch, nil
}

// refill stores what our copy has and the bucket has not, or has older. A removal there stays.
func refill(ctx context.Context, b *bus.Bucket, own *directory.Directory) error {
	var all []*directory.Verified
	for v := range own.All() {
		all = append(all, v)
	}
	slices.SortFunc(all, func(x, y *directory.Verified) int { return strings.Compare(x.Record.Name, y.Record.Name) })
	for _, v := range all {
		value, err := storedRecord(v.Signed)
		if err != nil {
			return err
		}
		brief, cancel := context.WithTimeout(ctx, storeWithin)
		have, err := b.Get(brief, v.Record.Name)
		switch s, _, readErr := readStored(have); {
		case errors.Is(err, bus.ErrNotFound):
			_, err = b.Put(brief, v.Record.Name, value)
		case err != nil:
		case readErr != nil || s != nil && sequenceOf(s) < v.Record.Sequence:
			_, err = b.Put(brief, v.Record.Name, value)
		}
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}
