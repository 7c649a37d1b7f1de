package directory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// Config configures a Keeper.
type Config struct {
	File   string // of the copy on disk; empty: none
	Limits Limits
	Trust  func() *collective.Trust // the present trust
	// Ask sends an encoded Ask to the coordinators and returns an encoded batch.
	Ask func(ctx context.Context, ask []byte) ([]byte, error)
	// Changed is called with changes of members, first with those in the file. One goroutine calls it. It must
	// not block for long, and not call Close. It may be nil.
	Changed func([]Event)
	Log     *slog.Logger
}

const (
	// inbox is the number of batches that wait to be applied. A batch that finds no room is requested later.
	inbox = 256
	// tickEvery is the interval of Directory.Tick.
	tickEvery = 5 * time.Second
	// askWithin bounds the time for an answer.
	askWithin = 30 * time.Second

	// firstPause is the pause after a request that brought nothing new. It doubles with each, up to lastPause. Half of
	// a pause is random, because many members may miss the same batch.
	firstPause = time.Second
	lastPause  = time.Minute
)

// Keeper maintains a directory in an agent: it applies the feed, requests missing changes, reports changes, and
// writes the copy on disk. Its methods may be called from any goroutine.
type Keeper struct {
	config   Config
	inbox    chan []byte
	poked    chan struct{} // doubt or retrust was set
	stop     context.CancelFunc
	running  sync.WaitGroup
	answered chan answer
	saved    chan error

	mu       sync.RWMutex
	d        *Directory
	doubt    bool // to be passed to d
	retrust  bool
	askErr   error
	loadErr  error
	saveErr  error
	garbled  uint64
	garbage  error // error of the last undecodable message
	savedAt  time.Time
	savedPos position

	// Owned by the loop.
	askAt    time.Time // not earlier
	failures int
	asking   bool
	again    bool // more may be missing than was requested
	saving   bool
	dirty    bool
	saveAt   time.Time // not earlier
	refusal  error     // the last that was logged
}

type answer struct {
	ask  Ask
	data []byte
	err  error
}

type position struct{ epoch, revision uint64 }

// State describes the local copy, for the agent's status.
type State struct {
	Members int
	Bytes   int // of signed records
	// Epoch and Revision are the copy's position in the feed. They are zero before the first batch.
	Epoch, Revision uint64
	Behind          bool  // changes are missing
	AskErr          error // why they could not be fetched
	Refused         map[Reason]uint64
	LastRefusal     error
	LoadErr         error     // why the copy on disk could not be used at the start
	SaveErr         error     // why it cannot be written
	Saved           time.Time // last time it was written; zero: not since the start
}

// Open starts a Keeper. Its directory is empty until the copy on disk has been read, which takes seconds for
// thousands of members. State reports a copy that could not be used.
func Open(c Config) *Keeper {
	ctx, stop := context.WithCancel(context.Background())
	k := &Keeper{
		config: c, d: New(c.Limits), stop: stop,
		inbox: make(chan []byte, inbox), poked: make(chan struct{}, 1),
		answered: make(chan answer, 1), saved: make(chan error, 1),
	}
	k.running.Go(func() { k.run(ctx) })
	return k
}

// Close writes unsaved changes to the disk, and returns when all of the keeper's goroutines have ended.
func (k *Keeper) Close() {
	k.stop()
	k.running.Wait()
}

// Receive applies a batch that was sent to all members. It never blocks.
func (k *Keeper) Receive(data []byte) {
	select {
	case k.inbox <- data:
	default:
		k.Connected()
	}
}

// Connected reports a new connection to the coordinators. Batches sent meanwhile are missing.
func (k *Keeper) Connected() { k.poke(func() { k.doubt = true }) }

// TrustChanged reports that the trust has changed, so that members may have been revoked or become valid.
func (k *Keeper) TrustChanged() { k.poke(func() { k.retrust = true }) }

func (k *Keeper) poke(set func()) {
	k.mu.Lock()
	set()
	k.mu.Unlock()
	select {
	case k.poked <- struct{}{}:
	default:
	}
}

// View calls f to read the directory. The records that f gets are immutable; the directory is not.
func (k *Keeper) View(f func(*Directory)) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	f(k.d)
}

// State returns the present state of the copy.
func (k *Keeper) State() State {
	k.mu.RLock()
	defer k.mu.RUnlock()
	_, behind := k.d.Behind()
	s := State{
		Members: k.d.Len(), Bytes: k.d.Bytes(), Behind: behind || k.doubt, AskErr: k.askErr,
		Refused: k.d.Refused(), LastRefusal: k.d.LastRefusal(),
		LoadErr: k.loadErr, SaveErr: k.saveErr, Saved: k.savedAt,
	}
	s.Epoch, s.Revision = k.d.Position()
	if k.garbled > 0 {
		s.Refused[MalformedMessage] = k.garbled
		s.LastRefusal = errors.Join(s.LastRefusal, k.garbage)
	}
	return s
}

// run owns the directory. Only its goroutine changes it.
func (k *Keeper) run(ctx context.Context) {
	var inFlight sync.WaitGroup
	defer inFlight.Wait()
	k.begin(ctx)
	timer := time.NewTimer(0)
	defer timer.Stop()
	tickAt := time.Now()
	for {
		// 1. What is due.
		now := time.Now()
		if !now.Before(tickAt) {
			k.change(func(d *Directory) []Event { return d.Tick(now) })
			tickAt = now.Add(tickEvery)
		}
		k.ask(ctx, now, &inFlight)
		k.save(now, &inFlight)
		timer.Reset(time.Until(k.next(tickAt)))

		// 2. What happens next.
		select {
		case data := <-k.inbox:
			k.receive(data)
		case a := <-k.answered:
			k.takeAnswer(a)
		case <-k.poked:
			k.takePoke()
		case err := <-k.saved:
			k.takeSaved(err)
		case <-timer.C:
		case <-ctx.Done():
			// 3. The end.
			inFlight.Wait()
			k.finish()
			return
		}
	}
}

// begin reads the copy on disk.
func (k *Keeper) begin(ctx context.Context) {
	if k.config.File == "" {
		return
	}
	d, err := Load(ctx, k.config.File, k.config.Limits, k.config.Trust(), time.Now())
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		k.config.Log.Warn("directory: starting without a copy", "err", err)
	}
	k.mu.Lock()
	k.d, k.loadErr = d, err
	k.mu.Unlock()
	var events []Event
	for v := range d.All() {
		events = append(events, newEvent(nil, v))
	}
	k.tell(events)
	k.savedPos.epoch, k.savedPos.revision = d.Position()
}

func (k *Keeper) next(tickAt time.Time) time.Time {
	at := tickAt
	if _, behind := k.d.Behind(); behind && !k.asking && k.askAt.Before(at) {
		at = k.askAt
	}
	if k.dirty && !k.saving && k.saveAt.Before(at) {
		at = k.saveAt
	}
	return at
}

// change changes the directory and reports the events.
func (k *Keeper) change(do func(*Directory) []Event) {
	k.mu.Lock()
	events := do(k.d)
	var pos position
	pos.epoch, pos.revision = k.d.Position()
	k.mu.Unlock()
	if k.config.File != "" && (len(events) > 0 || pos != k.savedPos) {
		k.dirty = true
	}
	if err := k.d.LastRefusal(); err != k.refusal { //nolint:errorlint // the same one?
		k.refusal = err
		k.config.Log.Debug("directory: a record was refused", "err", err)
	}
	k.tell(events)
}

func (k *Keeper) tell(events []Event) {
	if len(events) > 0 && k.config.Changed != nil {
		k.config.Changed(events)
	}
}

func (k *Keeper) receive(data []byte) {
	b, err := DecodeBatch(data)
	if err != nil {
		k.mu.Lock()
		k.garbled++
		k.garbage = err
		k.mu.Unlock()
		return
	}
	_, wasBehind := k.d.Behind()
	k.change(func(d *Directory) []Event { return d.Apply(b, k.config.Trust(), time.Now()) })
	if epoch, _ := k.d.Position(); b.Epoch != epoch {
		k.again = k.again || k.asking // the outstanding answer may be older
	}
	if _, behind := k.d.Behind(); behind && !wasBehind {
		k.askAt = time.Now().Add(rand.N(firstPause)) // others may have missed the same batch
	}
}

func (k *Keeper) takePoke() {
	k.mu.Lock()
	doubt, retrust := k.doubt, k.retrust
	k.doubt, k.retrust = false, false
	if doubt {
		k.d.Doubt()
		k.failures, k.askAt, k.again = 0, time.Time{}, k.asking
	}
	k.mu.Unlock()
	if retrust {
		k.change(func(d *Directory) []Event { return d.Recheck(k.config.Trust(), time.Now()) })
	}
}

// ask requests missing changes, one request at a time.
func (k *Keeper) ask(ctx context.Context, now time.Time, inFlight *sync.WaitGroup) {
	ask, behind := k.d.Behind()
	if !behind || k.asking || now.Before(k.askAt) {
		return
	}
	k.asking = true
	inFlight.Go(func() {
		data, err := ask.Encode()
		if err == nil {
			ctx, cancel := context.WithTimeout(ctx, askWithin)
			data, err = k.config.Ask(ctx, data)
			cancel()
		}
		k.answered <- answer{ask, data, err}
	})
}

func (k *Keeper) takeAnswer(a answer) {
	again := k.again
	k.asking, k.again = false, false
	var b Batch
	if a.err == nil {
		b, a.err = DecodeBatch(a.data)
	}
	if a.err == nil {
		k.change(func(d *Directory) []Event {
			events := d.Answer(b, k.config.Trust(), time.Now())
			if again {
				d.Doubt()
			}
			return events
		})
		if next, behind := k.d.Behind(); behind && next == a.ask && !again {
			a.err = fmt.Errorf("the coordinators know changes up to %d only, but change %d exists", b.Head, k.d.head)
		}
	}
	k.mu.Lock()
	k.askErr = a.err
	k.mu.Unlock()
	if a.err == nil {
		k.failures, k.askAt = 0, time.Time{}
		return
	}
	pause := min(firstPause<<min(k.failures, 10), lastPause)
	k.failures++
	k.askAt = time.Now().Add(pause/2 + rand.N(pause/2))
	k.config.Log.Debug("directory: cannot fetch missing changes, trying again", "err", a.err, "at", k.askAt)
}
