package records

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

// The bucket has an entry for each member that ever had a record: the record, or the reason why it was removed. It also
// has the epoch. A bucket that has lost changes gets another epoch.
const (
	bucketName = "records"
	epochKey   = "feed.epoch" // no member's name has a dot

	// isRecord is the first byte of a value that is a record. The encoded record follows.
	isRecord = 'R'
	// isRemoval is the first byte of a value that is a removal. Its reason follows.
	isRemoval = 'X'
)

func storedRecord(s *directory.SignedRecord) ([]byte, error) {
	data, err := s.Encode()
	return append([]byte{isRecord}, data...), err
}

func storedRemoval(why string) []byte { return append([]byte{isRemoval}, why...) }

// readStored reads a value. S is nil if the record was removed.
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

// sequenceOf returns a record's number. A record in the bucket has been verified before.
func sequenceOf(s *directory.SignedRecord) uint64 {
	var r struct {
		Sequence uint64 `json:"sequence"`
	}
	if json.Unmarshal(s.Payload, &r) != nil {
		return 0
	}
	return r.Sequence
}

// open opens the bucket. If it has lost changes since this coordinator saw it last, or is new or restored, open gives it
// another epoch, and adds the records that are newer in the copy.
func (s *Store) open(ctx context.Context, again, restored bool) (*bus.Bucket, uint64, error) {
	own, err := directory.Load(ctx, s.config.File, directory.DefaultLimits(), s.config.Identity.Trust(), s.config.Clock())
	if err != nil {
		s.config.Log.Warn("coordinator: its copy of the directory cannot be read", "err", err)
	}
	b, epoch, last, err := s.look(ctx)
	if err != nil {
		return nil, 0, err
	}
	seenEpoch, seen := own.Position()
	damaged := len(s.config.Bus.Damage()) > 0 && !again
	if epoch != 0 && !damaged && !restored && (epoch != seenEpoch || last >= seen) {
		return b, epoch, nil
	}
	next := max(uint64(s.config.Clock().UnixMilli()), epoch+1, seenEpoch+1)
	s.config.Log.Info("coordinator: the directory's store is new, or has lost changes: filling it", "epoch", next, "from", own.Len())
	if err := refill(ctx, b, own); err != nil {
		return nil, 0, err
	}
	// The epoch comes last, so that after a crash all is done again.
	brief, cancel := context.WithTimeout(ctx, storeWithin)
	defer cancel()
	if _, err := b.Put(brief, epochKey, []byte(strconv.FormatUint(next, 10))); err != nil {
		return nil, 0, err
	}
	return b, next, nil
}

// look opens the bucket and returns its epoch and last revision. It must be called again after an error, because a
// cluster that is just starting never answers.
func (s *Store) look(ctx context.Context) (b *bus.Bucket, epoch, last uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeWithin)
	defer cancel()
	if b, err = s.config.Bus.Bucket(ctx, bucketName, s.config.Replicas); err != nil {
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
		return 0, fmt.Errorf("the directory's store has an epoch that is not a number: %w", err)
	}
	return epoch, nil
}

// refill writes records that the bucket lacks, or has in an older version. Removals stay.
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
