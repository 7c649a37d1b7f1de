package probe

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Schema is the version of Record's JSON.
const Schema = "dcol.probe/1"

// Record is the result of one exchange, one line of a file of results.
type Record struct {
	Schema string    `json:"schema"`
	Time   time.Time `json:"time"`
	Server string    `json:"server"`
	Shape  Shape     `json:"shape"`
	Way    Way       `json:"way"`
	// Values are the shape's measurements; Shape.Measure names them.
	Values []float64 `json:"values,omitempty"`
	// Connect is the time for connecting, and Duration that for the whole exchange, in milliseconds.
	Connect  float64 `json:"connect_ms"`
	Duration float64 `json:"duration_ms"`
	// Replies has, for each measured reply, the path that brought most of it.
	Replies []string `json:"reply_paths,omitempty"`
	// Bytes is the number of bytes that each path brought, including reinjected data.
	Bytes map[string]uint64 `json:"bytes,omitempty"`
	// FellBack reports that the connection was plain TCP although MPTCP was requested.
	FellBack bool   `json:"fell_back,omitempty"`
	Error    string `json:"error,omitempty"` // why the exchange was not completed
}

// File is a file of results, to which whole lines are appended.
type File struct{ f *os.File }

// OpenFile opens a file for appending. If its last line is incomplete, for example after a power cut, new records begin
// on a new line. Several processes may append to the same file.
func OpenFile(path string) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the file of results: %w", err)
	}
	return &File{f}, nil
}

// Append adds a record. When it returns, the record is on disk.
func (f *File) Append(r Record) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(f.f.Fd()), unix.LOCK_EX); err != nil {
		return os.NewSyscallError("flock", err)
	}
	defer func() { _ = unix.Flock(int(f.f.Fd()), unix.LOCK_UN) }()
	if end, err := f.f.Seek(0, io.SeekEnd); err != nil {
		return err
	} else if end > 0 {
		var last [1]byte
		if _, err := f.f.ReadAt(last[:], end-1); err != nil {
			return err
		}
		if last[0] != '\n' {
			line = append([]byte("\n"), line...)
		}
	}
	if _, err := f.f.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("append a result: %w", err)
	}
	return f.f.Sync()
}

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }

// maxLine bounds a line of a file of results, in bytes. A record of a stream has 500 values.
const maxLine = 1 << 20

// Read reads records, sorts them by time, and counts lines that are not records as damaged.
func Read(r io.Reader) (records []Record, damaged int, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		var record Record
		if json.Unmarshal(line, &record) != nil || !record.valid() {
			damaged++
			continue
		}
		records = append(records, record)
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, 0, fmt.Errorf("line %d is longer than %d bytes: it is no file of results", len(records)+damaged+1, maxLine)
	} else if err != nil {
		return nil, 0, err
	}
	slices.SortStableFunc(records, func(a, b Record) int { return a.Time.Compare(b.Time) })
	return records, damaged, nil
}

func (r *Record) valid() bool {
	return r.Schema == Schema && slices.Contains(Shapes(), r.Shape) && slices.Contains(Ways(), r.Way) && !r.Time.IsZero()
}

// Gap is a time without results.
type Gap struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// Gaps returns the times without records that are longer than limit. records must be sorted by time. If limit is 0, it
// is three times the usual pause between runs, which is at least a minute.
func Gaps(records []Record, limit time.Duration) (gaps []Gap) {
	if limit <= 0 {
		limit = 3 * usualPause(records)
	}
	for i := 1; i < len(records); i++ {
		if before, after := records[i-1].Time, records[i].Time; after.Sub(before) > limit {
			gaps = append(gaps, Gap{before, after})
		}
	}
	return gaps
}

// usualPause returns the median of the pauses of at least a minute, because such pauses separate runs. It is a minute
// if there are none.
func usualPause(records []Record) time.Duration {
	const least = time.Minute
	var pauses []time.Duration
	for i := 1; i < len(records); i++ {
		if p := records[i].Time.Sub(records[i-1].Time); p >= least {
			pauses = append(pauses, p)
		}
	}
	if len(pauses) == 0 {
		return least
	}
	slices.Sort(pauses)
	return pauses[len(pauses)/2]
}
