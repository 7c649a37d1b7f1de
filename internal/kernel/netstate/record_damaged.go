package netstate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// DamagedError means that a record of sysctls could not be read completely.
type DamagedError struct {
	Record string // path of the record
	Aside  string // path of the damaged file
	Err    error  // the damage
	// Kept lists the sysctls that could still be read. They stay in the record and will be
	// restored.
	Kept []string
}

func (e *DamagedError) Error() string {
	kept := "None of them can be put back"
	if len(e.Kept) > 0 {
		kept = "Only " + strings.Join(e.Kept, ", ") + " can be put back"
	}
	return fmt.Sprintf("%s, the record of the sysctls that dcol changed, was damaged and is now %s (%v). %s", e.Record, e.Aside, e.Err, kept)
}

func (e *DamagedError) Unwrap() error { return e.Err }

// Damaged returns a *DamagedError if the record at path was found damaged since the host booted. It does so until the
// damaged file is removed.
func Damaged(path string) error {
	bootID, err := Sysctl(bootIDKey)
	if err != nil {
		return err
	}
	aside := asidePath(path, bootID)
	content, err := os.ReadFile(aside)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at a damaged record: %w", err)
	}
	netns, err := currentNetNS()
	if err != nil {
		return err
	}
	_, cause := parseRecord(content)
	damaged := &DamagedError{Record: path, Aside: aside, Err: cause}
	for _, c := range salvage(content, bootID, netns) {
		damaged.Kept = append(damaged.Kept, strings.ReplaceAll(c.Key, "/", "."))
	}
	return damaged
}

// asidePath returns the path for a damaged record. It includes the boot because a record is valid
// for one boot only.
func asidePath(path, bootID string) string { return path + ".damaged-" + bootID }

var errNoRecord = errors.New("it has no list of sysctls")

func parseRecord(content []byte) (recordFile, error) {
	var f recordFile
	if err := json.Unmarshal(content, &f); err != nil {
		return f, err
	}
	switch {
	case f.Version != recordVersion:
		return f, fmt.Errorf("it has version %d, and this program knows %d", f.Version, recordVersion)
	case f.BootID == "" || f.NetNS == "":
		return f, errNoRecord
	}
	return f, nil
}

// salvage returns the readable changes in a damaged record, if the record is certainly of this boot and namespace.
func salvage(content []byte, bootID, netns string) (changes []sysctlChange) {
	if !bytes.Contains(content, []byte(bootID)) || !bytes.Contains(content, []byte(netns)) {
		return nil
	}
	for i, b := range content {
		if b != '{' {
			continue
		}
		var c sysctlChange
		known := func(x sysctlChange) bool { return x.Key == c.Key }
		decoder := json.NewDecoder(bytes.NewReader(content[i:]))
		decoder.DisallowUnknownFields()
		if decoder.Decode(&c) == nil && c.Key != "" && !slices.ContainsFunc(changes, known) {
			changes = append(changes, c)
		}
	}
	return changes
}
