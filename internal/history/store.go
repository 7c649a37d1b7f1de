package history

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/detour-collective/dcol/internal/api"
)

// limit bounds the periods of a bucket.
type limit struct {
	periods int
	bytes   int // size of the file's pages
}

// Minutes are kept for two days and hours for 400 days. If there are more, the oldest are deleted. The limit is a
// number and not an age, so that a clock that was wrong for a while deletes nothing. If many paths make periods long,
// the limit in bytes applies: there are fewer minutes, and the oldest hours are joined into days. 20 MB hold more than
// a thousand days of the longest periods.
var (
	minutesLimit = limit{2 * 24 * 60, 10 << 20}
	hoursLimit   = limit{400 * 24, 20 << 20}
)

const (
	// growth is the step by which the file grows, in bytes.
	growth = 1 << 20
	// longestPeriod bounds the JSON of a period, in bytes. It has room for dozens of paths with names of 63 bytes.
	longestPeriod = 16 << 10
	lockPatience  = time.Second
	// mostAside bounds the number of damaged files that are kept.
	mostAside = 3
)

// errDamaged is wrapped by errors that the file's contents cause, and not the disk or the system.
var errDamaged = errors.New("damaged")

var (
	minutesBucket = []byte("minutes")
	hoursBucket   = []byte("hours")
	leftBucket    = []byte("left") // created by Store.leave
	leftKey       = []byte("agent")
)

// Store keeps Periods in a file. It is safe for concurrent use.
type Store struct {
	db             *bolt.DB
	minutes, hours limit
}

// DamagedError reports that a damaged file was set aside.
type DamagedError struct {
	Aside string // the file's new name
	Err   error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the history is damaged, and was set aside as %s; it begins anew: %v", e.Aside, e.Err)
}

func (e *DamagedError) Unwrap() error { return e.Err }

// Open opens the file at path, or creates it. If the file is damaged, Open renames it, creates a new one, and returns a
// Store as well as a *DamagedError. After any other error, for example because the disk is full, the file stays as it
// is.
func Open(path string) (*Store, error) {
	s, err := open(path)
	if !errors.Is(err, errDamaged) {
		return s, err
	}
	aside := free(path + ".damaged")
	if moved := os.Rename(path, aside); moved != nil {
		return nil, errors.Join(err, moved)
	}
	s, again := open(path)
	if again != nil {
		return nil, errors.Join(err, again)
	}
	return s, &DamagedError{Aside: aside, Err: err}
}

// free returns the first of mostAside names like path that no file has. If all exist, it returns the last.
func free(path string) string {
	name := path
	for i := 2; i <= mostAside; i++ {
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			break
		}
		name = fmt.Sprintf("%s-%d", path, i)
	}
	return name
}

func open(path string) (s *Store, err error) {
	var db *bolt.DB
	empty := isEmpty(path)
	err = guard(func() (err error) {
		db, err = bolt.Open(path, 0o600, &bolt.Options{Timeout: lockPatience})
		if err != nil {
			return withCause(err, path)
		}
		if err := checkPages(path); err != nil {
			return err
		}
		if err := db.View(check); err != nil {
			return err
		}
		return makeBuckets(db)
	})
	if err != nil && empty && !errors.Is(err, bolterrors.ErrTimeout) {
		_ = os.Truncate(path, 0) // otherwise half a new file would count as damaged the next time
	}
	if err != nil {
		if db != nil {
			err = errors.Join(err, guard(db.Close))
		}
		return nil, fmt.Errorf("open the history %s: %w", path, err)
	}
	db.AllocSize = growth
	return &Store{db: db, minutes: minutesLimit, hours: hoursLimit}, nil
}

func isEmpty(path string) bool {
	info, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0
}

// withCause wraps errors of bolt.Open that the file's contents cause with errDamaged. The library has no named error
// for a file that is shorter than its two headers.
func withCause(err error, path string) error {
	info, unknown := os.Stat(path)
	short := unknown == nil && info.Size() < 2*int64(os.Getpagesize())
	var system syscall.Errno
	if errors.Is(err, bolterrors.ErrInvalid) || errors.Is(err, bolterrors.ErrVersionMismatch) || errors.Is(err, bolterrors.ErrChecksum) ||
		short && !errors.As(err, &system) && !errors.Is(err, bolterrors.ErrTimeout) {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return err
}

// makeBuckets creates missing buckets. If none is missing it writes nothing, so a complete file can be opened on a full
// disk.
func makeBuckets(db *bolt.DB) error {
	var whole bool
	err := db.View(func(tx *bolt.Tx) error {
		whole = tx.Bucket(minutesBucket) != nil && tx.Bucket(hoursBucket) != nil
		return nil
	})
	if err != nil || whole {
		return err
	}
	return db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(minutesBucket)
		if err == nil {
			_, err = tx.CreateBucketIfNotExists(hoursBucket)
		}
		return err
	})
}

// check reads the whole file.
func check(tx *bolt.Tx) (err error) {
	for found := range tx.Check() { // the channel must be read to its end
		err = errors.Join(err, found)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return nil
}

// guard runs f and turns the library's panics into errors. The library maps the file into memory, so a page that cannot
// be read causes a fault.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errDamaged, p)
		}
	}()
	return f()
}

// Close closes the file.
func (s *Store) Close() error { return guard(s.db.Close) }

// Add adds each period to the minute and to the hour that contain its beginning.
func (s *Store) Add(list ...api.Period) error {
	err := guard(func() error {
		return s.db.Update(func(tx *bolt.Tx) error {
			if err := addTo(tx.Bucket(minutesBucket), list, api.StepMinute, s.minutes); err != nil {
				return err
			}
			return addTo(tx.Bucket(hoursBucket), list, api.StepHour, s.hours)
		})
	})
	if err != nil {
		return fmt.Errorf("write the history: %w", err)
	}
	return nil
}

// parse reads a period. Callers skip a period that cannot be read, because one broken period must not cost the others.
func parse(data []byte) (p api.Period, ok bool) {
	err := json.Unmarshal(data, &p)
	return p, err == nil
}

func addTo(b *bolt.Bucket, list []api.Period, step api.HistoryStep, most limit) error {
	before := b.Stats() // excludes the changes of this transaction
	surplus, over := before.KeyN-most.periods, before.LeafAlloc+before.BranchAlloc-most.bytes
	for i := range list {
		isNew, err := put(b, &list[i], step)
		if err != nil {
			return err
		}
		if isNew {
			surplus++
		}
	}
	for step == api.StepHour && over > 0 {
		saved, err := fold(b)
		if err != nil {
			return err
		}
		if saved == 0 {
			break
		}
		over -= saved
	}
	for c := b.Cursor(); surplus > 0 || over > 0; surplus-- {
		k, data := c.First()
		if k == nil {
			break
		}
		over -= len(k) + len(data)
		if err := c.Delete(); err != nil {
			return err
		}
	}
	return nil
}

// put adds p to the period of length step that contains its beginning. It reports whether that period is new.
func put(b *bolt.Bucket, p *api.Period, step api.HistoryStep) (isNew bool, err error) {
	sum := api.Period{Start: begin(p.Start, step)}
	key := keyOf(sum.Start)
	data := b.Get(key)
	isNew = data == nil
	if before, ok := parse(data); ok {
		sum = before
	}
	merge(&sum, p)
	if data, err = json.Marshal(sum); err != nil {
		return false, err
	}
	if len(data) > longestPeriod {
		return false, fmt.Errorf("a period takes %d bytes, more than %d", len(data), longestPeriod)
	}
	return isNew, b.Put(key, data)
}

// fold finds the oldest day with several hours, joins them into the first, and returns the number of bytes that this
// saves. It returns 0 if there is no such day.
func fold(b *bolt.Bucket) (saved int, err error) {
	var day time.Time
	var keys [][]byte
	var sum api.Period
	c := b.Cursor()
	for k, data := c.First(); k != nil; k, data = c.Next() {
		p, ok := parse(data)
		if !ok {
			continue
		}
		if at := begin(p.Start.Local(), api.StepDay); !at.Equal(day) {
			if len(keys) > 1 {
				break
			}
			day, keys, saved, sum = at, nil, 0, api.Period{Start: p.Start}
		}
		merge(&sum, &p)
		keys, saved = append(keys, bytes.Clone(k)), saved+len(k)+len(data)
	}
	if len(keys) < 2 {
		return 0, nil
	}
	for _, k := range keys[1:] {
		if err := b.Delete(k); err != nil {
			return 0, err
		}
	}
	data, err := json.Marshal(sum)
	if err != nil {
		return 0, err
	}
	return saved - len(keys[0]) - len(data), b.Put(keys[0], data)
}

// Read returns the periods that begin at since or later and before until, the earliest first.
func (s *Store) Read(step api.HistoryStep, since, until time.Time) (list []api.Period, err error) {
	bucket := hoursBucket
	if unit(step) == api.StepMinute {
		bucket = minutesBucket
	}
	err = guard(func() error {
		return s.db.View(func(tx *bolt.Tx) error {
			end := keyOf(until)
			c := tx.Bucket(bucket).Cursor()
			for k, data := c.Seek(keyOf(since)); k != nil && string(k) < string(end); k, data = c.Next() {
				if p, ok := parse(data); ok {
					p.Start = p.Start.Local()
					list = append(list, p)
				}
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the history: %w", err)
	}
	if step == api.StepDay || step == api.StepMonth {
		list = group(list, step)
	}
	return list, nil
}

// leave stores what an agent leaves to the next one.
func (s *Store) leave(l Left) error {
	data, err := json.Marshal(l)
	if err != nil {
		return err
	}
	err = guard(func() error {
		return s.db.Update(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists(leftBucket)
			if err != nil {
				return err
			}
			return b.Put(leftKey, data)
		})
	})
	if err != nil {
		return fmt.Errorf("write the history: %w", err)
	}
	return nil
}

// left returns what the previous agent stored with leave.
func (s *Store) left() (l Left, err error) {
	err = guard(func() error {
		return s.db.View(func(tx *bolt.Tx) error {
			b := tx.Bucket(leftBucket)
			if b == nil || b.Get(leftKey) == nil {
				return nil
			}
			return json.Unmarshal(b.Get(leftKey), &l)
		})
	})
	return l, err
}

// keyOf returns a key that sorts by time. All times before 1970 have the same key.
func keyOf(t time.Time) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(max(t.Unix(), 0)))
}
