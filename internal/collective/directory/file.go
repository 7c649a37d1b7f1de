package directory

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/durable"
)

// The file is the magic, a SHA-256 of what follows, and frames: a length in four bytes, big endian, and as
// many bytes. The first frame is a batch without changes that says where in the feed the copy is, the
// others are batches of its records, as in the feed. The hash finds damage; that nobody else has written
// records only their signatures prove, so they are verified when they are read.
const magic = "dcol directory 1\n"

// FileError says that the copy on disk could not be used, or not be kept.
type FileError struct {
	Path  string
	Aside string // where it lies now; empty: where it was
	Err   error
}

func (e *FileError) Error() string {
	if e.Aside == "" {
		return fmt.Sprintf("the directory's copy %s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("the directory's copy %s: %v; it was moved to %s, and will be fetched again from the coordinators", e.Path, e.Err, e.Aside)
}

func (e *FileError) Unwrap() error { return e.Err }

// ErrDamaged is a file that is no whole copy of a directory.
var ErrDamaged = errors.New("not a complete copy of a directory")

// Encode is the file's contents.
func (d *Directory) Encode() ([]byte, error) {
	// Those that wait come last: when they are read, what they wait for is taken already.
	all := append(inOrder(d.entries), inOrder(d.waiting)...)
	at := Batch{Epoch: max(d.epoch, 1), After: d.revision}
	if d.listing.id != 0 || !d.relist.IsZero() {
		at.After = 0 // half a listing is none, and what was refused for now is missing
	}
	at.Revision, at.Head = at.After, at.After
	frames, err := appendFrame(nil, &at)
	for err == nil && len(all) > 0 {
		var b Batch
		b, all = nextFrame(all)
		frames, err = appendFrame(frames, &b)
	}
	if err != nil {
		return nil, fmt.Errorf("encode the directory: %w", err)
	}
	return withSum(frames), nil
}

func withSum(frames []byte) []byte {
	sum := sha256.Sum256(frames)
	return slices.Concat([]byte(magic), sum[:], frames)
}

func inOrder(entries map[string]*entry) []*entry {
	return slices.SortedFunc(maps.Values(entries), func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.revision, b.revision))
	})
}

// nextFrame takes as many entries as one batch holds.
func nextFrame(all []*entry) (Batch, []*entry) {
	b := Batch{Epoch: all[0].epoch, After: all[0].revision - 1, Revision: all[0].revision - 1}
	var size sizer
	for i, e := range all {
		c := Change{Revision: e.revision, Signed: e.Signed}
		if e.epoch != b.Epoch || e.revision <= b.Revision || size.add(c) > MaxMessage {
			return b, all[i:]
		}
		b.Changes = append(b.Changes, c)
		b.Revision, b.Head = c.Revision, c.Revision
	}
	return b, nil
}

func appendFrame(dst []byte, b *Batch) ([]byte, error) {
	data, err := b.Encode()
	if err != nil {
		return nil, err
	}
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(data))), data...), nil
}

// decodeFile reads what Encode writes: where in the feed it is, and batches of records.
func decodeFile(data []byte) (at Batch, records []Batch, err error) {
	rest, ok := bytes.CutPrefix(data, []byte(magic))
	if !ok || len(rest) < sha256.Size {
		return Batch{}, nil, fmt.Errorf("%w: wrong format", ErrDamaged)
	}
	sum, rest := rest[:sha256.Size], rest[sha256.Size:]
	if have := sha256.Sum256(rest); !bytes.Equal(sum, have[:]) {
		return Batch{}, nil, fmt.Errorf("%w: its checksum is wrong", ErrDamaged)
	}
	for len(rest) > 0 {
		if len(rest) < 4 {
			return Batch{}, nil, fmt.Errorf("%w: truncated", ErrDamaged)
		}
		n := binary.BigEndian.Uint32(rest)
		if rest = rest[4:]; uint64(n) > uint64(len(rest)) {
			return Batch{}, nil, fmt.Errorf("%w: truncated", ErrDamaged)
		}
		b, err := DecodeBatch(rest[:n])
		if err != nil {
			return Batch{}, nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		records, rest = append(records, b), rest[n:]
	}
	if len(records) == 0 || len(records[0].Changes) > 0 {
		return Batch{}, nil, fmt.Errorf("%w: its collective is missing", ErrDamaged)
	}
	return records[0], records[1:], nil
}

// Load makes a directory from the copy in a file. It always returns one: empty if there is no file, or if
// the error, a *FileError, says that it is of no use. A damaged file is put aside. As all is verified again,
// it takes seconds for thousands of members; when the context ends, it stops with what it has.
func Load(ctx context.Context, path string, limits Limits, trust *collective.Trust, now time.Time) (*Directory, error) {
	d := New(limits)
	data, written, err := readFile(path, 2*int64(limits.Bytes)+1<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	var at Batch
	var records []Batch
	if err == nil {
		at, records, err = decodeFile(data)
	}
	switch {
	case errors.Is(err, ErrDamaged):
		aside := path + ".damaged"
		if renameErr := os.Rename(path, aside); renameErr != nil {
			return d, &FileError{Path: path, Err: errors.Join(err, renameErr)}
		}
		return d, &FileError{Path: path, Aside: aside, Err: err}
	case err != nil:
		return d, &FileError{Path: path, Err: err}
	}
	d.restore(ctx, at, records, trust, now)
	if written.After(time.Now().Add(time.Minute)) { // the clock was ahead, and records seemed to have ended
		d.startOver()
	}
	return d, nil
}

// restore takes what was written, as far as it still is true. If anything may be missing because this
// host's clock or trust is not what it was, all is asked for again.
func (d *Directory) restore(ctx context.Context, at Batch, records []Batch, trust *collective.Trust, now time.Time) {
	for _, b := range records {
		if ctx.Err() != nil {
			return
		}
		d.epoch = b.Epoch
		for _, c := range b.Changes {
			if c.Signed != nil {
				d.takeRecord(c, trust, now)
			}
		}
	}
	d.retry()
	d.epoch, d.revision, d.head = at.Epoch, at.Revision, at.Revision
	var lost uint64
	for reason, n := range d.refused {
		if reason != Revoked && reason != SubnetTaken && reason != KeyTaken {
			lost += n
		}
	}
	if lost > 0 {
		d.startOver()
	}
}

// readFile returns a file's contents, and when it was written.
func readFile(path string, most int64) (data []byte, written time.Time, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, written, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, written, err
	}
	if data, err = io.ReadAll(io.LimitReader(f, most+1)); err != nil {
		return nil, written, err
	}
	if int64(len(data)) > most {
		return nil, written, fmt.Errorf("%w: larger than %d bytes", ErrDamaged, most)
	}
	return data, info.ModTime(), nil
}

// Save writes a file's contents: at any moment, a power cut leaves the old or the new file.
func Save(path string, data []byte) error {
	err := durable.Replace(path, data, 0o600)
	if err == nil {
		err = os.Chtimes(path, time.Time{}, time.Now()) // Load asks by which clock it was written
	}
	if err != nil {
		return &FileError{Path: path, Err: err}
	}
	return nil
}
