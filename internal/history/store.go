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
	bytes   int // of the file's pages
}

// Minutes of two days and hours of four hundred days are kept. The oldest go first, by number and not by age, so
// that a clock that was wrong for a while removes nothing. Where many paths make periods long, there are fewer minutes,
// and the oldest hours are joined into days: 20 MB are more than a thousand days of the longest periods.
var (
	minutesLimit = limit{2 * 24 * 60, 10 << 20}
	hoursLimit   = limit{400 * 24, 20 << 20}
)

const (
	// growth is the room by which the file grows.
	growth = 1 << 20
	// longestPeriod bounds the form of a period: paths by the dozen, with names of 63 bytes.
	longestPeriod = 16 << 10
	lockPatience  = time.Second
	// mostAside bounds the damaged files that are kept.
	mostAside = 3
)

// errDamaged is the cause of errors that come from what the file contains, and not from the disk or the system.
var errDamaged = errors.New("damaged")

var (
	minutesBucket = []byte("minutes")
	hoursBucket   = []byte("hours")
	leftBucket    = []byte("left") // is made by leave
	leftKey       = []byte("agent")
)

// Store keeps Periods in a file. It is safe for concurrent use.
type Store struct {
	db             *bolt.DB
	minutes, hours limit
}

// DamagedError reports that a file could not be read and was set aside.
type DamagedError struct {
	Aside string // where it is now
	Err   error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the history is damaged, and was set aside as %s; it begins anew: %v", e.Aside, e.Err)
}

func (e *DamagedError) Unwrap() error { return e.Err }

// Open opens the file at path, or makes it. A *DamagedError comes with a Store: a file that is damaged is set aside, and
// a new one made. After any other error, such as that of a full disk, the file is where it was.
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

// free returns the first name like path that no file has, or the last of mostAside.
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
		_ = os.Truncate(path, 0) // else the half of a new file would count as damaged the next time
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

// withCause adds errDamaged to an error of bolt.Open that the file's contents have caused. Of one that is shorter than its
// two headers, the library returns an error without a name.
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

// makeBuckets makes the buckets that the file lacks. It writes nothing to one that has them, so that it opens on a full disk.
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
	for found := range tx.Check() { // must be read to its end
		err = errors.Join(err, found)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return nil
}

// guard runs f and turns the panics of the library into errors: it maps the file into memory, where a page that cannot
// be read is a fault.
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

// Add adds what happened in the minute of p.Start to that minute and to its hour.
func (s *Store) Add(p api.Period) error {
	err := guard(func() error {
		return s.db.Update(func(tx *bolt.Tx) error {
			if err := addTo(tx.Bucket(minutesBucket), p, api.StepMinute, s.minutes); err != nil {
				return err
			}
			return addTo(tx.Bucket(hoursBucket), p, api.StepHour, s.hours)
		})
	})
	if err != nil {
		return fmt.Errorf("write the history: %w", err)
	}
	return nil
}

// parse reads a period. One that cannot be read is as if it were not there: the others would be lost with it.
func parse(data []byte) (p api.Period, ok bool) {
	err := json.Unmarshal(data, &p)
	return p, err == nil
}

func addTo(b *bolt.Bucket, p api.Period, step api.HistoryStep, most limit) error {
	start := begin(p.Start, step)
	key := keyOf(start)
	sum := api.Period{Start: start}
	before := b.Stats() // without what this transaction adds
	surplus, over := before.KeyN-most.periods, before.LeafAlloc+before.BranchAlloc-most.bytes
	if data := b.Get(key); data == nil {
		surplus++
	} else if before, ok := parse(data); ok {
		sum = before
	}
	merge(&sum, &p)
	data, err := json.Marshal(sum)
	if err != nil {
		return err
	}
	if len(data) > longestPeriod {
		return fmt.Errorf("a period takes %d bytes, more than %d", len(data), longestPeriod)
	}
	if err := b.Put(key, data); err != nil {
		return err
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

// fold joins the hours of the oldest day that has several into the first of them, and returns the bytes that this saves; 0: no day
// has several.
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

// Read returns the periods that begin from since on and before until, the earliest first.
func (s *Store) Read(step api.HistoryStep, since, until time.Time) (list []api.Period, err error) {
	bucket := hoursBucket
	if step == api.StepMinute {
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

// leave keeps what the agent that ends leaves to the next one.
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

// left returns what the agent that ended last has left.
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

// keyOf returns a key that sorts by time. Times before 1970 are all the first.
func keyOf(t time.Time) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(max(t.Unix(), 0)))
}
