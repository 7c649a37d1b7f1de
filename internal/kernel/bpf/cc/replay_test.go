package cc

import (
	"encoding/binary"
	"fmt"
)

// found is what an ACK finds, in a record.
type found struct{ Ack, Acked, Next, Window, Threshold, Clamp uint32 }

func (f found) socket(limited uint32) socket {
	return socket{f.Ack, f.Acked, f.Next, f.Window, f.Threshold, f.Clamp, limited != 0}
}

// coupledRecord is struct record of coupled.h.
type coupledRecord struct {
	Socket           uint64
	Before, After    state
	Found            found
	WindowAfter      uint32
	Limited, Looked  uint32
	_                uint32
	Windows, Rtts    [subflows]uint64
	Losses           [subflows]uint64
	OwnWindow, OwnRt uint64
	OwnLoss          uint64
}

func replayCoupled(a Algorithm, b []byte) (looked bool, difference string) {
	var r coupledRecord
	if n, err := binary.Decode(b, binary.NativeEndian, &r); err != nil || n != len(b) {
		return false, fmt.Sprintf("a record of %d bytes: %v", len(b), err)
	}
	own := subflow{r.OwnWindow, r.OwnRt, r.OwnLoss}
	var all []subflow
	for i := range r.Windows {
		if r.Rtts[i] != 0 {
			all = append(all, subflow{r.Windows[i], r.Rtts[i], r.Losses[i]})
		}
	}
	did := false
	after, window := r.Before.avoid(r.Found.socket(r.Limited), func() int64 {
		did = true
		switch {
		case len(all) < 2:
			return int64(renoIncrement(own.window))
		case a == LIA:
			return int64(lia(own, all))
		case a == OLIA:
			return olia(own, all)
		}
		return int64(balia(own, all))
	})
	if after != r.After || window != r.WindowAfter || did != (r.Looked != 0) {
		return did, fmt.Sprintf("the model has %+v, window %d, looked %v, and the program %+v", after, window, did, r)
	}
	return did, ""
}

// vegasRecord is struct vegas_record of wvegas.c.
type vegasRecord struct {
	Socket                      uint64
	Before, After               vegas
	Others                      uint64
	Found                       found
	WindowAfter, ThresholdAfter uint32
	Limited, _                  uint32
}

func replayVegas(b []byte) (ended bool, difference string) {
	var r vegasRecord
	if n, err := binary.Decode(b, binary.NativeEndian, &r); err != nil || n != len(b) {
		return false, fmt.Sprintf("a record of %d bytes: %v", len(b), err)
	}
	after, window, threshold, reno := r.Before.avoid(r.Found.socket(r.Limited), r.Others)
	ended = !reno && after.End != r.Before.End
	if after != r.After || !reno && window != r.WindowAfter || threshold != r.ThresholdAfter {
		return ended, fmt.Sprintf("the model has %+v, window %d, threshold %d, and the program %+v", after, window, threshold, r)
	}
	return ended, ""
}
