package coordinator

import (
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/detour-collective/dcol/internal/durable"
)

// An expulsion must not fail because the disk is full. It needs some kilobytes, for the register, revocation lists, the
// bus's keys and the directory's store. The reserve is enough for many expulsions.
const (
	reserved = 2 << 20
	lowRoom  = 1 << 20 // with less room than this, the disk is full or soon will be
)

// reserve sets disk space aside for expulsions.
type reserve struct {
	dir  string
	file *durable.Reserve
	log  *slog.Logger
}

func newReserve(dir string, log *slog.Logger) *reserve {
	return &reserve{dir: dir, file: durable.NewReserve(filepath.Join(dir, "reserve"), reserved), log: log}
}

// keep sets the space aside, again if it was used.
func (r *reserve) keep() {
	if err := r.file.Keep(); err != nil {
		r.log.Warn("coordinator: no disk space can be reserved for expulsions", "err", err)
	}
}

// use frees the space if the disk is full.
func (r *reserve) use() {
	room, err := durable.Room(r.dir)
	if err == nil && room >= lowRoom {
		return
	}
	if err == nil {
		err = r.file.Free()
	}
	if err != nil {
		r.log.Warn("coordinator: there may be no disk space for an expulsion", "err", err)
	}
}

// problem describes a full disk. It returns "" if the disk is not full.
func (r *reserve) problem() string {
	room, err := durable.Room(r.dir)
	if err != nil {
		return err.Error()
	}
	if room >= lowRoom {
		return ""
	}
	return fmt.Sprintf("the disk with %s is full (%d KiB are left): nobody can be invited, join or renew, and changes of records are lost; free some space. "+
		"Expelling members still works, with reserved space", r.dir, room>>10)
}
