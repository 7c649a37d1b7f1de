package directory

import (
	"sync"
	"time"
)

// After a power cut the coordinators send lost changes again, so a large copy is written rarely.
const (
	// saveRate is the average rate of writing, in bytes a second, within the bounds below.
	saveRate = 20 << 10
	// soonest and latest bound the time between two writes.
	soonest = 5 * time.Second
	latest  = 10 * time.Minute
)

func saveEvery(bytes int) time.Duration {
	return min(max(time.Duration(bytes)*time.Second/saveRate, soonest), latest)
}

// save writes the copy if it is due.
func (k *Keeper) save(now time.Time, inFlight *sync.WaitGroup) {
	switch {
	case !k.dirty || k.saving:
		return
	case k.saveAt.IsZero():
		k.saveAt = now.Add(soonest) // the first change after the last save
		return
	case now.Before(k.saveAt):
		return
	}
	data, err := k.contents()
	k.saving = true
	k.saveAt = now.Add(saveEvery(len(data)))
	inFlight.Go(func() {
		if err == nil {
			err = Save(k.config.File, data)
		}
		k.saved <- err
	})
}

func (k *Keeper) contents() ([]byte, error) {
	k.dirty = false
	k.savedPos.epoch, k.savedPos.revision = k.d.Position()
	return k.d.Encode()
}

func (k *Keeper) takeSaved(err error) {
	k.saving = false
	k.mu.Lock()
	before := k.saveErr
	k.saveErr = err
	if err == nil {
		k.savedAt = time.Now()
	}
	k.mu.Unlock()
	if err != nil {
		k.dirty = true
		if before == nil {
			k.config.Log.Warn("directory: the copy on disk cannot be written, trying again", "err", err)
		}
	}
}

// finish writes unsaved changes.
func (k *Keeper) finish() {
	select {
	case err := <-k.saved:
		k.takeSaved(err)
	default:
	}
	if !k.dirty {
		return
	}
	data, err := k.contents()
	if err == nil {
		err = Save(k.config.File, data)
	}
	k.takeSaved(err)
}
