package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// The wire format. Both ends speak frames:
//
//	length of the payload   uint32, big endian
//	type                    uint8
//	request id              uint32, big endian, chosen by the runner; 0 only in hello
//	payload
//
//	type     from    payload
//	hello    envd    JSON, once, first
//	request  runner  JSON {"op": …}; opens the request
//	data     both    stream uint8, bytes
//	eof      runner  stream uint8; no more data on it
//	credit   both    stream uint8, bytes uint32: so much more may be sent on that stream
//	cancel   runner  nothing
//	result   envd    JSON {"ok": {…}} or {"error": {"kind", "message"}}; closes the request
//
// Streams: 0 runs to envd (stdin, the tar of a put), 1 and 2 to the runner (stdout or the tar of a get; stderr).
// Each stream of each request starts with windowBytes of credit. A receiver therefore never holds more than that for one stream, and a
// reader that stalls stops its own stream only. Frames for a request that is over are dropped.
const (
	protocolVersion = 1

	headerBytes     = 9
	maxChunkBytes   = 64 << 10  // data bytes of one frame
	windowBytes     = 256 << 10 // unacknowledged bytes of one stream
	maxRequestBytes = 4 << 20   // above the kernel's limit for arguments and environment together
	maxResultBytes  = 1 << 20
	maxHelloBytes   = 64 << 10
)

type frameType uint8

const (
	frameHello frameType = iota + 1
	frameRequest
	frameData
	frameEOF
	frameCredit
	frameCancel
	frameResult
)

const (
	streamIn  = 0
	streamOut = 1
	streamErr = 2
)

// payloadLimits says how long a payload may be; a type that is not listed is refused.
var payloadLimits = map[frameType]uint32{
	frameHello:   maxHelloBytes,
	frameRequest: maxRequestBytes,
	frameData:    maxChunkBytes + 1,
	frameEOF:     1,
	frameCredit:  5,
	frameCancel:  0,
	frameResult:  maxResultBytes,
}

// errViolation marks a breach of the wire format: the connection cannot be used any more.
var errViolation = errors.New("protocol violation")

type frame struct {
	kind    frameType
	id      uint32
	payload []byte
}

// readFrame reads one frame. io.EOF means that the other end closed the connection between two frames.
func readFrame(r io.Reader) (frame, error) {
	var header [headerBytes]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return frame{}, err
	}
	length := binary.BigEndian.Uint32(header[0:4])
	f := frame{kind: frameType(header[4]), id: binary.BigEndian.Uint32(header[5:9])}
	limit, known := payloadLimits[f.kind]
	if !known {
		return frame{}, fmt.Errorf("%w: frame type %d", errViolation, f.kind)
	}
	if length > limit {
		return frame{}, fmt.Errorf("%w: frame type %d with %d bytes, limit %d", errViolation, f.kind, length, limit)
	}
	f.payload = make([]byte, length)
	if _, err := io.ReadFull(r, f.payload); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return frame{}, err
	}
	return f, nil
}

// appendFrame adds an encoded frame to buf; the payload is the parts one after the other.
func appendFrame(buf []byte, kind frameType, id uint32, parts ...[]byte) []byte {
	length := 0
	for _, part := range parts {
		length += len(part)
	}
	buf = binary.BigEndian.AppendUint32(buf, uint32(length))
	buf = append(buf, byte(kind))
	buf = binary.BigEndian.AppendUint32(buf, id)
	for _, part := range parts {
		buf = append(buf, part...)
	}
	return buf
}

// parseCredit reads the payload of a credit frame.
func parseCredit(payload []byte) (stream byte, n int, err error) {
	if len(payload) != 5 {
		return 0, 0, fmt.Errorf("%w: credit of %d bytes", errViolation, len(payload))
	}
	amount := binary.BigEndian.Uint32(payload[1:])
	if amount == 0 || amount > windowBytes {
		return 0, 0, fmt.Errorf("%w: credit for %d bytes", errViolation, amount)
	}
	return payload[0], int(amount), nil
}

// credit is what one outgoing stream may still send.
type credit struct {
	mu        sync.Mutex
	available int
	more      chan struct{} // holds one token after a give
}

func newCredit() *credit {
	return &credit{available: windowBytes, more: make(chan struct{}, 1)}
}

// take waits for credit and returns at least 1 and at most limit bytes of it.
func (c *credit) take(ctx context.Context, limit int) (int, error) {
	for {
		c.mu.Lock()
		n := min(limit, c.available)
		c.available -= n
		c.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		select {
		case <-c.more:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// give adds credit that the other end granted, or returns what was taken and not used.
func (c *credit) give(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.available+n > windowBytes {
		return fmt.Errorf("%w: more credit than was used", errViolation)
	}
	c.available += n
	select {
	case c.more <- struct{}{}:
	default:
	}
	return nil
}

// inbox is the receiving end of one incoming stream: at most windowBytes wait in it.
type inbox struct {
	mu     sync.Mutex
	change *sync.Cond
	buf    bytes.Buffer
	err    error // io.EOF after the last byte, or why no more will come
	unpaid int   // bytes read that were not yet granted again
	grant  func(n int)
}

func newInbox(grant func(n int)) *inbox {
	b := &inbox{grant: grant}
	b.change = sync.NewCond(&b.mu)
	return b
}

func (b *inbox) push(data []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return nil // nobody will read it
	}
	if b.buf.Len()+b.unpaid+len(data) > windowBytes {
		return fmt.Errorf("%w: more data than was granted", errViolation)
	}
	b.buf.Write(data)
	b.change.Signal()
	return nil
}

// finish ends the stream; the first call counts. What is buffered can still be read.
func (b *inbox) finish(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
	}
	b.change.Broadcast()
}

// Read blocks until there is data. The sender is granted more once a quarter of the window was read.
func (b *inbox) Read(p []byte) (int, error) {
	b.mu.Lock()
	for b.buf.Len() == 0 && b.err == nil {
		b.change.Wait()
	}
	if b.buf.Len() == 0 {
		defer b.mu.Unlock()
		return 0, b.err
	}
	n, _ := b.buf.Read(p)
	b.unpaid += n
	pay := 0
	if b.unpaid >= windowBytes/4 && b.err == nil {
		pay, b.unpaid = b.unpaid, 0
	}
	b.mu.Unlock()
	if pay > 0 {
		b.grant(pay)
	}
	return n, nil
}
