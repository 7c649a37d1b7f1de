package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/internal/analyse"
	"github.com/detour-collective/dcol/internal/analyse/analysetest"
	"github.com/detour-collective/dcol/internal/analyse/capture"
	"github.com/detour-collective/dcol/internal/analyse/track"
	"github.com/detour-collective/dcol/lab/dissect"
)

// Parameters of the benchmark analyse.
const (
	analyseSnap        = 128
	analyseAlive       = 10_000
	analyseConnections = 100_000
	analysePackets     = 72_000_000 // 70 million without those of connections that begin late: 10 GB with 128 bytes of each
	// plantedEach is the number of connections of each kind of planted events.
	plantedEach = 25
	// In a part of the slice, each packet is compared with tshark's fields.
	comparedConnections, comparedAlive = 100, 50
	// dcol and tshark are measured on the slice, in the page cache. As many connections are alive in it as in the long
	// capture, with fewer packets.
	sliceConnections = 12_000
	slicePackets     = 320
)

// analyseTraffic runs `dcol analyse` on generated captures. It checks that the events planted in them are found, and
// that the fields equal tshark's. It measures the rate on a slice in the page cache, tshark's rate on the same slice,
// and the memory for a long capture that is read from a pipe.
func analyseTraffic(ctx context.Context, o Options) (found []Measurement, err error) {
	planted, err := plantedEvents(ctx, o.Out)
	if err != nil {
		return nil, err
	}
	found = append(found, planted)
	slice := filepath.Join(o.Out, "analyse.pcap")
	defer func() { err = errors.Join(err, os.Remove(slice)) }()
	packets, err := writeSlice(slice)
	if err != nil {
		return nil, err
	}
	dcol := o.Programs.DCol
	repetitions := max(3, o.Repetitions)
	var rates []float64
	var took time.Duration
	for range repetitions {
		used, err := measureProgram(ctx, nil, dcol, "analyse", "--json", slice)
		if err != nil {
			return nil, err
		}
		if err := used.expect(packets, sliceConnections); err != nil {
			return nil, err
		}
		rates = append(rates, float64(packets)/used.processor.Seconds()/1e6)
		if took == 0 || used.wall < took {
			took = used.wall
		}
	}
	rate := of("analyse: packets per second of a core, 10,000 connections alive", "million/s", rates)
	found = append(found, rate.target(">= 1.5 million/s", rate.Value >= 1.5))
	if tshark, err := exec.LookPath("tshark"); err == nil {
		same, err := asTshark(ctx, o.Out)
		if err != nil {
			return found, err
		}
		found = append(found, same)
		used, err := measureProgram(ctx, nil, tshark, "-n", "-q", "-r", slice, "-z", "io,stat,0,tcp.options.mptcp.subtype==2")
		if err != nil {
			return found, err
		}
		m := once("analyse: time for the same slice, beside tshark", "s", took.Seconds()).against(used.wall.Seconds())
		found = append(found, m.target("ratio <= 0.1", *m.Ratio <= 0.1))
	} else {
		fmt.Fprintln(o.Stderr, "bench analyse: no tshark on this machine, so no comparison")
	}
	m, err := analyseMemory(ctx, dcol)
	return append(found, m), err
}

// plantedEvents analyses a capture of connections with fallbacks of each cause, reinjections, handovers, unused
// subflows, ends of all kinds and no events. It counts the connections in which exactly the planted events are found.
func plantedEvents(ctx context.Context, out string) (m Measurement, err error) {
	mixed := analysetest.Mix(plantedEach)
	path := filepath.Join(out, "planted.pcap")
	defer func() { err = errors.Join(err, os.Remove(path)) }()
	err = writeCapture(path, func(to io.Writer) error {
		pcap, err := analysetest.NewPcap(to, analyseSnap)
		for _, f := range mixed.Frames {
			err = errors.Join(err, pcap.Write(f))
		}
		return err
	})
	if err != nil {
		return m, err
	}
	files, err := capture.Open([]string{path})
	if err != nil {
		return m, err
	}
	defer files.Close()
	all, right := 0, 0
	_, err = analyse.Run(ctx, files, analyse.Options{Idle: 2 * time.Minute, Connections: 2 * mixed.Connections(), Workers: 1, Done: func(_ int, r *track.Record) {
		all++
		if _, exactly := mixed.Of(r).Find(r); exactly {
			right++
		}
	}})
	// A connection that does not exist counts as much as one that was not found.
	share := 100 * float64(right) / float64(max(all, mixed.Connections()))
	m = once("analyse: connections in which exactly the planted events were found", "%", share)
	m.Note = fmt.Sprintf("%d connections", mixed.Connections())
	return m.target("100 %", share == 100), err
}

// asTshark compares the connections, and all fields of packets, with those that tshark reads.
func asTshark(ctx context.Context, out string) (m Measurement, err error) {
	path := filepath.Join(out, "compared.pcap")
	defer func() { err = errors.Join(err, os.Remove(path)) }()
	err = writeCapture(path, func(to io.Writer) error {
		_, err := generate(to, comparedConnections, comparedAlive, slicePackets)
		return err
	})
	if err != nil {
		return m, err
	}
	r, err := dissect.Compare(ctx, path)
	if err != nil {
		return m, err
	}
	m = once("analyse: differences with tshark's fields and connections", "differences", float64(r.Differing))
	m.Note = fmt.Sprintf("%d packets, %d connections; make nightly-tshark compares the lab's captures", r.Packets, r.Connections)
	return m.target("0", r.Differing == 0), nil
}

// writeCapture writes a file.
func writeCapture(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	buffered := bufio.NewWriterSize(f, 1<<20)
	return errors.Join(write(buffered), buffered.Flush(), f.Close())
}

// analyseMemory measures the memory on a long capture with many connections alive at a time.
func analyseMemory(ctx context.Context, dcol string) (m Measurement, err error) {
	from, to, err := os.Pipe()
	if err != nil {
		return m, err
	}
	var packets uint64
	written := make(chan error, 1)
	go func() {
		var err error
		packets, err = generate(to, analyseConnections, analyseAlive, analysePackets/analyseConnections)
		written <- errors.Join(err, to.Close())
	}()
	used, err := measureProgram(ctx, from, dcol, "analyse", "--json", "-")
	err = errors.Join(err, from.Close(), <-written)
	if err != nil {
		return m, err
	}
	if err := used.expect(packets, analyseConnections); err != nil {
		return m, err
	}
	m = once("analyse: memory, 100,000 connections, 10,000 alive", "MiB", float64(used.memory)/(1<<20))
	m.Note = fmt.Sprintf("%d packets in %v", packets, used.wall.Round(time.Second))
	return m.target("<= 300 MiB", used.memory <= 300<<20), nil
}

func writeSlice(path string) (packets uint64, err error) {
	err = writeCapture(path, func(to io.Writer) (err error) {
		packets, err = generate(to, sliceConnections, analyseAlive, slicePackets)
		return err
	})
	return packets, err
}

// generate writes a capture of connections of two subflows. alive of them are open at a time. Their packets alternate.
func generate(to io.Writer, connections, alive, packetsEach int) (packets uint64, err error) {
	buffered := bufio.NewWriterSize(to, 1<<20)
	pcap, err := analysetest.NewPcap(buffered, analyseSnap)
	if err != nil {
		return 0, err
	}
	var failed error
	script := analysetest.New(1)
	script.Gap = 3 * time.Microsecond
	script.Emit = func(f analysetest.Frame) {
		if failed == nil {
			failed = pcap.Write(f)
		}
	}
	const turnPackets = 8
	turns := packetsEach / turnPackets
	list := make([]*analysetest.Conn, alive)
	rest := make([]int, alive)
	for done, begun := 0, 0; done < connections && failed == nil; {
		for i := range list {
			switch {
			case list[i] != nil && rest[i] > 0:
				rest[i]--
				turn(list[i])
			case list[i] != nil:
				list[i].Close(list[i].Subflows...)
				list[i] = nil
				done++
			case begun < connections:
				list[i] = begin(script, begun)
				// The first connections end at different times, and so do the later ones.
				rest[i] = turns
				if begun < alive {
					rest[i] = 1 + turns*begun/alive
				}
				begun++
			}
		}
	}
	return pcap.Count, errors.Join(failed, buffered.Flush())
}

func begin(s *analysetest.Script, number int) *analysetest.Conn {
	client := netip.AddrFrom4([4]byte{10, byte(number >> 16), byte(number >> 8), byte(number)})
	server := netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(number % 7)}), 443)
	c := s.Conn(1)
	c.Open(netip.AddrPortFrom(client, 40000), server)
	c.Join(analysetest.Client, netip.AddrPortFrom(client, 40001), server, 2)
	return c
}

// turn sends eight packets.
func turn(c *analysetest.Conn) {
	for _, f := range c.Subflows {
		f.Send(analysetest.Server, 1400)
		f.Send(analysetest.Server, 1400)
		f.Ack(analysetest.Client)
	}
	c.Subflows[0].Send(analysetest.Client, 100)
	c.Subflows[0].Ack(analysetest.Server)
}

// programUse holds the time and memory that a program used, and the end of its output.
type programUse struct {
	wall, processor time.Duration
	memory          int64 // bytes, at most
	output          []byte
}

func measureProgram(ctx context.Context, stdin io.Reader, name string, args ...string) (u programUse, err error) {
	cmd := exec.CommandContext(ctx, name, args...)
	tail := new(tailWriter)
	var said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, tail, &said
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return u, fmt.Errorf("%s: %w: %s", name, err, said.Bytes())
	}
	u.wall = time.Since(began)
	u.processor = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		u.memory = usage.Maxrss << 10
	}
	u.output = tail.last
	return u, nil
}

// tailWriter keeps the end of the bytes written to it.
type tailWriter struct{ last []byte }

func (w *tailWriter) Write(p []byte) (int, error) {
	const kept = 1 << 16
	w.last = append(w.last, p...)
	if len(w.last) > 2*kept {
		w.last = append(w.last[:0], w.last[len(w.last)-kept:]...)
	}
	return len(p), nil
}

// expect checks that the analysis found all connections, and nothing else.
func (u programUse) expect(packets uint64, connections int) error {
	_, text, ok := bytes.Cut(u.output, []byte("\n],\n\"capture\":"))
	if !ok {
		return errors.New("dcol analyse printed no summary")
	}
	var found struct {
		Capture struct{ Packets, MPTCP uint64 } `json:"capture"`
		Summary struct {
			Connections  int               `json:"connections"`
			Ends         map[string]int    `json:"ends"`
			Fallbacks    map[string]int    `json:"fallbacks"`
			Reinjected   uint64            `json:"reinjected_bytes"`
			Retransmit   uint64            `json:"retransmitted_bytes"`
			Anomalies    map[string]uint64 `json:"anomalies"`
			BySubflows   map[string]int    `json:"connections_by_subflows"`
			HandoverKind map[string]uint64 `json:"handovers"`
		} `json:"summary"`
	}
	if err := json.Unmarshal(append([]byte(`{"capture":`), text...), &found); err != nil {
		return fmt.Errorf("read the summary: %w", err)
	}
	s := found.Summary
	if found.Capture.MPTCP != packets || s.Connections != connections || s.Ends["data-fin"] != connections || s.BySubflows[strconv.Itoa(2)] != connections {
		return fmt.Errorf("dcol analyse found %d of %d connections in %d of %d packets: %+v", s.Connections, connections, found.Capture.MPTCP, packets, s)
	}
	if len(s.Fallbacks)+len(s.Anomalies)+len(s.HandoverKind) > 0 || s.Reinjected+s.Retransmit > 0 {
		return fmt.Errorf("dcol analyse found what was not there: %+v", s)
	}
	return nil
}
