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

// The file consists of the magic, a SHA-256 of the rest, and frames: a length of four bytes, big endian, and that
// many bytes. The first frame is a batch without changes that has the position in the feed. The others are
// batches of records, as in the feed. The hash detects damage. Only signatures prove who wrote the records, so
// they are verified when they are read.
const magic = "dcol directory 1\n"

// FileError reports that the copy on disk could not be read or written.
type FileError struct {
	Path  string
	Aside string // where it was moved; empty: it was not moved
	Err   error
}

func (e *FileError) Error() string {
	if e.Aside == "" {
		return fmt.Sprintf("the directory's copy %s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("the directory's copy %s: %v; it was moved to %s, and will be fetched again from the coordinators", e.Path, e.Err, e.Aside)
}

func (e *FileError) Unwrap() error { return e.Err }

// ErrDamaged means that the file is not a complete copy of a directory.
var ErrDamaged = errors.New("not a complete copy of a directory")

// Encode returns the file's content.
func (d *Directory) Encode() ([]byte, error) {
	// Waiting records come last, so that they wait again when they are read.
	all := append(inOrder(d.entries), inOrder(d.waiting)...)
	at := Batch{Epoch: max(d.epoch, 1), After: d.revision}
	if d.listing.id != 0 || !d.relist.IsZero() {
		at.After = 0 // a partial listing is useless, and refused records are missing
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

// nextFrame returns a batch of as many entries as fit, and the rest.
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

// decodeFile decodes the file's content: the position in the feed, and batches of records.
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

// Load reads a directory from its copy in a file. It always returns a directory, which is empty if there is no
// file, or if the error, a *FileError, says that the file cannot be used. It moves a damaged file away. Because
// it verifies every record, it takes seconds for thousands of members. When the context ends, it returns the
// records read so far.
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
	if written.After(time.Now().Add(time.Minute)) { // the clock was ahead, so records may have been dropped as expired
		d.startOver()
	}
	return d, nil
}

// restore applies the file's records that are still valid. If some may be missing because this host's clock or trust
// has changed, it requests everything again.
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

// readFile returns a file's content, and when it was written.
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

// Save writes the file atomically: after a power cut, either the old or the new file is there.
func Save(path string, data []byte) error {
	err := durable.Replace(path, data, 0o600)
	if err == nil {
		err = os.Chtimes(path, time.Time{}, time.Now()) // Load checks the clock by which it was written
	}
	if err != nil {
		return &FileError{Path: path, Err: err}
	}
	return nil
}
